"""Who may speak to the server: names that it answers to, pages that may call it, and its token. Free of any server."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from arr_stream.errors import InvalidSetting

_LEAST_TOKEN = 8
_TOKEN = re.compile(r"[!-~]+")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(\d{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


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

    def allows_origin(self, origin: str, host: str, scheme: str) -> bool:
        """Whether a page from `origin` may call the server under the name `host`: only if it came from there."""
        try:
            parts = urlsplit(origin.strip().lower())
            called = urlsplit(f"{scheme}://{host.strip().lower()}")
            return (
                parts.scheme in _DEFAULT_PORTS
                and parts.hostname is not None
                and not (parts.path or parts.query or parts.username)
                and parts.hostname == called.hostname
                and _port(parts.port, parts.scheme) == _port(called.port, parts.scheme)
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


def _port(port: int | None, scheme: str) -> int | None:
    return port if port is not None else _DEFAULT_PORTS.get(scheme)


def _same(given: str | None, right: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())


def _own_names() -> set[str]:
    """What this machine is called."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return {name, short, f"{short}.local"}
