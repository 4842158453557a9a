"""Which sources the page may open: only what the command line allows."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from arr_stream.errors import InvalidSetting
from arr_stream.plain_text import redact_url
from arr_stream.sources.live import is_live_spec
from arr_stream.sources.live.spec import NETWORK_SCHEMES

# Stricter than any parser that comes after it, so that none can see another host in what was allowed.
_ADDRESS = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,31})://(?:[A-Za-z0-9._~%!$&'()*+,;=:-]*@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?(?P<rest>[/?][^\\#\s]*)?",
    re.ASCII,
)
_PATTERN = re.compile(
    r"(?P<scheme>[a-z0-9+.*?-]{1,32})://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._*?-]+)(?::(?P<port>[\d*]{1,5}))?"
    r"(?P<rest>[/?].*)?",
    re.ASCII,
)
_CAMERA = re.compile(
    r"\d{1,4}|camera:[^/\\\x00-\x1f]{1,200}|(?:camera:)?/dev/(?:video\d{1,4}|v4l/by-(?:id|path)/[\w.:+-]+)"
)
_UPWARD = re.compile(r"(?:\.|%2e){2}|%25", re.IGNORECASE)
"""What may lead out of the folder that a path begins with, once a server has read it, or read it twice."""
_PREFIXED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class SourceNotAllowed(InvalidSetting):
    """The page may not open this source."""


@dataclass(frozen=True, slots=True)
class AllowedSources:
    """What may be opened.

    Args:
        named: Sources exactly as on the command line; the page knows them without their passwords.
        patterns: `SCHEME://HOST[:PORT][/PATH]` with `*` and `?`. In a host, `*` stays within one label, and
            `10.0.0.*` means addresses alone. Without a port any will do, without a path too. Or the beginning of a test
            source, such as `lavfi:testsrc2*`.
        cameras: Any camera of this machine.
        browser: The camera or screen of a browser.
        folders: Files below these; links that lead out of them do not count.

    Raises:
        InvalidSetting: A pattern that is none, or a folder that does not exist.
    """

    named: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    cameras: bool = False
    browser: bool = True
    folders: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            if not pattern.startswith("lavfi:") and not _PATTERN.fullmatch(pattern):
                raise InvalidSetting(
                    f"--allow {redact_url(pattern)!r} is not SCHEME://HOST[:PORT][/PATH] without user and password",
                    remedy="write such as 'rtsp://10.0.0.*', and quote it",
                )
        for folder in self.folders:
            if not folder.is_dir():
                raise InvalidSetting(f"--folder {folder}: there is no such folder", remedy="check the path")

    @property
    def public_names(self) -> list[str]:
        """The named sources without their secrets."""
        return [redact_url(source) for source in self.named]

    def resolve(self, source: str) -> str:
        """What to open for what the page has asked for.

        Raises:
            SourceNotAllowed: It may not be opened, or does not exist; which of the two is not said.
        """
        source = source.strip()
        for named, public in zip(self.named, self.public_names, strict=True):
            if source in (named, public):
                return named
        if self.cameras and _CAMERA.fullmatch(source) and ".." not in source:
            return source
        if source.startswith("lavfi:"):
            if any(fnmatchcase(source, pattern) for pattern in self.patterns if pattern.startswith("lavfi:")):
                return source
        elif (address := _ADDRESS.fullmatch(source)) is not None:
            if any(_matches(address, pattern) for pattern in self.patterns):
                return source
        elif (path := self._file(source)) is not None:
            return f"loop:{path}" if source.startswith("loop:") else str(path)
        raise SourceNotAllowed(
            f"the source {redact_url(source)[:200]!r} may not be opened from here",
            remedy="the server's command line says what may: --allow, --allow-cameras, --folder",
        )

    def _file(self, source: str) -> Path | None:
        """The file that is meant, links resolved, if it lies below one of the folders."""
        name = source.removeprefix("loop:")
        if not name or "\0" in name or ".." in Path(name).parts or _PREFIXED.match(name):
            return None
        for folder in self.folders:
            try:
                root = folder.resolve(strict=True)
                path = (root / name).resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            # A name such as `0` would be taken for a camera, were it not a whole path by now.
            if path.is_relative_to(root) and path.is_file() and not is_live_spec(str(path)):
                return path
        return None


def make_allowed(
    named: Sequence[str],
    *,
    patterns: Sequence[str] = (),
    cameras: bool = False,
    browser: bool = True,
    folders: Sequence[Path] = (),
) -> AllowedSources:
    """See `AllowedSources`; sources that are named twice count once."""
    return AllowedSources(tuple(dict.fromkeys(named)), tuple(patterns), cameras, browser, tuple(folders))


def _matches(address: re.Match[str], pattern: str) -> bool:
    wanted = _PATTERN.fullmatch(pattern)
    scheme = address["scheme"]
    if wanted is None or scheme not in NETWORK_SCHEMES or not fnmatchcase(scheme, wanted["scheme"]):
        return False
    if wanted["port"] is not None and not fnmatchcase(address["port"] or "", wanted["port"]):
        return False
    rest = address["rest"] or ""
    if wanted["rest"] is not None and (_UPWARD.search(rest.partition("?")[0]) or not fnmatchcase(rest, wanted["rest"])):
        return False
    return _host_matches(address["host"].lower(), wanted["host"].lower())


def _host_matches(host: str, pattern: str) -> bool:
    """Label by label, so that `10.0.0.*` is neither `10.0.0.1.example.com` nor `10.0.0.com`."""
    if pattern == "*":
        return True
    if host.startswith("[") or pattern.startswith("["):
        return host == pattern
    labels, wanted = host.split("."), pattern.split(".")
    if len(labels) != len(wanted):
        return False
    if re.fullmatch(r"[\d*?.]+", pattern):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return False
    return all(map(fnmatchcase, labels, wanted))
