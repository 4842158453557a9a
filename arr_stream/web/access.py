"""The rules alone, free of any server: who may speak to it, and which sources it may open for them.

Starlette's TrustedHostMiddleware knows fixed names only: not that any address will do, but no other name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from arr_stream.errors import InvalidSetting
from arr_stream.plain_text import redact_url
from arr_stream.sources.live import is_live_spec
from arr_stream.sources.live.spec import NETWORK_SCHEMES

_LEAST_TOKEN = 8
_TOKEN = re.compile(r"[!-~]+")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(\d{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}

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


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of entry.

    Args:
        host: Name or address that the server listens on.
        token: What every request has to know; None asks for none.
        names: Further names that the server is reached by.
        port: For the name of the cookie: cookies do not tell ports apart.
    """

    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()
    port: int = 8080

    @property
    def loopback(self) -> bool:
        """Nobody but this machine reaches it."""
        return is_loopback(self.host)

    @property
    def cookie_name(self) -> str:
        return f"arr_stream_{self.port}"

    @property
    def cookie_value(self) -> str:
        """Proves that the token was known; does not tell it."""
        return hmac.new((self.token or "").encode(), b"arr-stream cookie", hashlib.sha256).hexdigest()

    def allows_host(self, host: str) -> bool:
        """Whether the `Host` of a request is a name of this server.

        A page of another site whose name was made to lead here (DNS rebinding) has a name of its own. Addresses cannot
        be made to lead elsewhere.
        """
        match = _HOST.fullmatch(host.strip().lower())
        if match is None:
            return False
        name = match.group(1).rstrip(".")
        if name == "localhost" or name in {known.lower() for known in (self.host, *self.names)}:
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return not self.loopback and name in _own_names()
        return address.is_loopback or not self.loopback

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page from `origin` may call the server under the name `host`: only if it came from there."""
        try:
            page, called = urlsplit(origin.strip().lower()), urlsplit(f"//{host.strip().lower()}")
            port = _DEFAULT_PORTS.get(page.scheme)
            return (
                port is not None
                and page.hostname is not None
                and not (page.path or page.query or page.username)
                and (page.hostname, page.port or port) == (called.hostname, called.port or port)
            )
        except ValueError:
            return False

    def knows_token(self, given: str | None) -> bool:
        """Whether the token is right, or none is needed; takes the same time for every wrong one."""
        return self.token is None or _same(given, self.token)

    def knows_cookie(self, given: str | None) -> bool:
        """Whether the cookie is one that this server has set."""
        return self.token is None or _same(given, self.cookie_value)


def make_access(host: str, *, token: str | None, names: Sequence[str] = (), port: int = 8080) -> Access:
    """Rules of entry for an address: any that is not loopback gets a token, a new one unless given.

    A loopback address does too where it has a further name: who calls it by that comes through a proxy.

    Raises:
        InvalidSetting: The token is too short or has characters that no header can carry; a name is none.
    """
    if token is not None and (len(token) < _LEAST_TOKEN or not _TOKEN.fullmatch(token)):
        raise InvalidSetting(
            f"the token has {len(token)} characters",
            remedy=f"give at least {_LEAST_TOKEN}, letters, digits and signs without blanks",
        )
    for name in names:
        if not _HOST.fullmatch(name.lower()) or ":" in name.strip("[]"):
            raise InvalidSetting(f"--allow-host {name!r}", remedy="give a host's name without port")
    if token is None and not all(map(is_loopback, (host, *names))):
        token = secrets.token_urlsafe(24)
    return Access(host, token, tuple(name.rstrip(".") for name in names), port)


def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, is of this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


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
        """The named sources without their secrets, each once."""
        return list(dict.fromkeys(map(redact_url, self.named)))

    def resolve(self, source: str) -> str:
        """What to open for what the page has asked for.

        Raises:
            SourceNotAllowed: It may not be opened, or does not exist; which of the two is not said.
        """
        source = source.strip()
        for named in self.named:
            if source in (named, redact_url(named)):
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


def _same(given: str | None, right: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())


def _own_names() -> set[str]:
    """What this machine is called."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return {name, short, f"{short}.local"}


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
