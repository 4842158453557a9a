"""Access rules, independent of any server: clients that may connect, and sources that they may open.

Starlette's TrustedHostMiddleware supports fixed names only; these rules allow any address, but no other name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from arr_stream.errors import ArrStreamError, InvalidSetting
from arr_stream.plain_text import redact_url
from arr_stream.sources.live import is_live_spec
from arr_stream.sources.live.spec import NETWORK_SCHEMES

_LEAST_TOKEN = 8
_TOKEN = re.compile(r"[!-~]+")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(\d{1,5}))?")

# Stricter than any later parser, so that no parser can see another host in an allowed source.
_ADDRESS = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,31})://(?:[A-Za-z0-9._~%!$&'()*+,;=:-]*@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?(?:[/?][^\\#\s]*)?",
    re.ASCII,
)
_PATTERN = re.compile(
    r"(?P<scheme>[a-z]{1,32})://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._*-]+)(?::(?P<port>\d{1,5}))?", re.ASCII
)
_CAMERA = re.compile(
    r"\d{1,4}|camera:[^/\\\x00-\x1f]{1,200}|(?:camera:)?/dev/(?:video\d{1,4}|v4l/by-(?:id|path)/[\w.:+-]+)"
)
_PREFIXED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class Access:
    """Rules for access to the server.

    Args:
        host: Name or address that the server listens on.
        token: Token that every request needs; None for no token.
        names: Further names of the server.
        port: For the name of the cookie: cookies do not distinguish ports.
    """

    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()
    port: int = 8080

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def cookie_name(self) -> str:
        return f"arr_stream_{self.port}"

    @property
    def cookie_value(self) -> str:
        """Proof of the token that does not reveal it."""
        return hmac.new((self.token or "").encode(), b"arr-stream cookie", hashlib.sha256).hexdigest()

    def allows_host(self, host: str) -> bool:
        """Return True if the `Host` of a request is a name of this server.

        A page of another site whose name resolves to this server (DNS rebinding) sends its own name. Addresses cannot
        be rebound.
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
            return False
        return address.is_loopback or not self.loopback

    def allows_origin(self, origin: str, host: str) -> bool:
        """Return True if a page from `origin` may call the server under the name `host`: only if it came from there.

        Browsers leave the default port out of both.
        """
        return origin.strip().lower() in {f"{scheme}://{host.strip().lower()}" for scheme in ("http", "https")}

    def knows_token(self, given: str | None) -> bool:
        """Return True if the token is right, or none is needed; takes the same time for every wrong one."""
        return self.token is None or _same(given, self.token)

    def knows_cookie(self, given: str | None) -> bool:
        """Return True if this server has set the cookie."""
        return self.token is None or _same(given, self.cookie_value)


def make_access(host: str, *, token: str | None, names: Sequence[str] = (), port: int = 8080) -> Access:
    """Return the access rules for an address: any that is not loopback gets a token, a new one unless given.

    A loopback address with a further name gets one too: clients that use the name come through a proxy.

    Raises:
        InvalidSetting: The token is too short or has characters that no header can carry; or a name is not valid.
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
    """Return True if an address, or the name localhost, belongs to this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Refused(ArrStreamError):
    """Request that is refused with an HTTP status: 403 not allowed, 404 unknown, 409 not now, 503 not yet or busy."""

    def __init__(self, status: int, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


@dataclass(frozen=True, slots=True)
class AllowedSources:
    """Sources that clients may open.

    Args:
        named: Sources exactly as on the command line; the page knows them without their passwords.
        patterns: `SCHEME://HOST[:PORT]` for any path there, and without a port for any port. In the host, `*` stands
            for a label, and `10.0.0.*` matches addresses only. Or a test source, such as `lavfi:testsrc2*`.
        cameras: Any camera of this machine.
        folders: Files below these; links that lead out of them do not count.

    Raises:
        InvalidSetting: A pattern is not valid, or a folder does not exist.
    """

    named: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    cameras: bool = False
    folders: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            if not pattern.startswith("lavfi:") and not _PATTERN.fullmatch(pattern):
                raise InvalidSetting(
                    f"--allow {redact_url(pattern)!r}: no folder, and no SCHEME://HOST[:PORT] without password",
                    remedy="write such as 'rtsp://10.0.0.*', and quote it",
                )
        for folder in self.folders:
            if not folder.is_dir():
                raise InvalidSetting(f"{folder}: there is no such folder", remedy="check the path")

    @property
    def public_names(self) -> list[str]:
        """Return the named sources without their secrets, each once."""
        return list(dict.fromkeys(map(redact_url, self.named)))

    def resolve(self, source: str) -> str:
        """Return the source to open for the page's input.

        Raises:
            Refused: It may not be opened, or does not exist; the error does not reveal which.
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
        raise Refused(
            403,
            f"the source {redact_url(source)[:200]!r} is not allowed by this server",
            remedy="allow it with --allow when the server is started",
        )

    def _file(self, source: str) -> Path | None:
        """Return the file, links resolved, if it is below one of the folders."""
        name = source.removeprefix("loop:")
        if not name or "\0" in name or ".." in Path(name).parts or _PREFIXED.match(name):
            return None
        for folder in self.folders:
            try:
                root = folder.resolve(strict=True)
                path = (root / name).resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            # A relative name such as `0` would be taken for a camera; the path is absolute here.
            if path.is_relative_to(root) and path.is_file() and not is_live_spec(str(path)):
                return path
        return None


def _same(given: str | None, right: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())


def _matches(address: re.Match[str], pattern: str) -> bool:
    """Compare label by label, so that `10.0.0.*` is neither `10.0.0.1.example.com` nor `10.0.0.com`."""
    wanted = _PATTERN.fullmatch(pattern)
    if wanted is None or address["scheme"] not in NETWORK_SCHEMES or address["scheme"] != wanted["scheme"]:
        return False
    label = r"\d{1,3}" if re.fullmatch(r"[\d.*]+", wanted["host"]) else r"[^.]+"
    host = ".+" if wanted["host"] == "*" else re.escape(wanted["host"]).replace(r"\*", label)
    return wanted["port"] in (None, address["port"]) and bool(re.fullmatch(host, address["host"], re.IGNORECASE))
