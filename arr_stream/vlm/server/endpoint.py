"""The address of a model's server, and its secrets."""

from __future__ import annotations

import base64
import ipaddress
import os
import urllib.parse
from dataclasses import dataclass, field

from arr_stream.errors import InvalidSetting, ServerFailed
from arr_stream.plain_text import one_line, redact_url


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address without its secrets; the secrets are separate fields that no representation shows.

    Args:
        url: http or https, without user and password.
        shown: The URL for display: secret parameters are masked.
        headers: Credentials besides the key, such as a password in the address.
        loopback: The server is on this machine.
    """

    url: str
    shown: str
    key_variable: str
    loopback: bool
    key: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, address: str, key_variable: str) -> Endpoint:
        """Check an address and read the key from the environment.

        Raises:
            InvalidSetting: Not an http or https address, or a key that no header can hold.
        """
        shown = one_line(address)
        try:
            parts = urllib.parse.urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError as exc:
            raise _not_an_address(shown, str(exc)) from None
        if parts.scheme not in ("http", "https") or not host:
            raise _not_an_address(shown, "not an http or https address")
        if any(character.isspace() or not character.isprintable() for character in address):
            raise _not_an_address(shown, "it holds spaces or control characters")
        bare = f"[{host}]" if ":" in host else host
        place = bare if port is None else f"{bare}:{port}"
        url = urllib.parse.urlunsplit((parts.scheme, place, parts.path.rstrip("/"), parts.query, ""))
        key = _key(key_variable)
        headers, secrets = _basic(parts.username, parts.password)
        values = [value for _, value in urllib.parse.parse_qsl(parts.query)] if "***" in shown else []
        return cls(
            url,
            redact_url(url),
            key_variable,
            _is_loopback(host),
            key,
            headers,
            tuple(secret for secret in (key, *secrets, *values) if len(secret) > 3),
        )

    def failed(self, what: str, remedy: str) -> ServerFailed:
        """Return the error for a request to this server."""
        return ServerFailed(f"{self.shown}: {what}", remedy=remedy)

    def scrubbed(self, text: str) -> str:
        """Return a text with the secrets masked."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return redact_url(text)


def _not_an_address(shown: str, why: str) -> InvalidSetting:
    return InvalidSetting(f"vlm.endpoint={shown!r}: {why}", remedy="write it like http://127.0.0.1:8000/v1")


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidSetting(
            f"the key in {variable} holds spaces, control or other characters that no key has",
            remedy=f"set {variable} again, or name another variable with vlm.key_variable",
        )
    return key


def _basic(user: str | None, password: str | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the header for a user and password in the address; outside the URL, libraries do not log them."""
    if user is None and password is None:
        return {}, ()
    plain = f"{urllib.parse.unquote(user or '')}:{urllib.parse.unquote(password or '')}"
    coded = base64.b64encode(plain.encode()).decode()
    return {"Authorization": f"Basic {coded}"}, (password or "", urllib.parse.unquote(password or ""), coded)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
