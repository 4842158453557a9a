"""Resolution of the user's input to a kind of live source, and of the requested size."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting, NotAMediaFile, SourceNotFound
from arr_stream.plain_text import redact_url
from arr_stream.sources.locate import local_spec, public_name

Family = Literal["network", "camera", "lavfi", "loop", "file"]

NETWORK_SCHEMES = frozenset(
    {"http", "https", "rtmp", "rtmpe", "rtmps", "rtmpt", "rtmpts", "rtsp", "rtsps", "rtspt", "srt", "udp"}
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31})://")
_VIDEO_DEVICE = re.compile(r"/dev/(?:video\d+|v4l/.+)")


@dataclass(frozen=True, slots=True)
class LiveSpec:
    """One live source, not opened yet.

    Args:
        family: Kind of opener.
        target: The address with its password, the camera's number, name or device, the filter graph, or the path.
        name: The user's input, without passwords; for records and messages.
        scheme: Scheme of an address, in lower case; empty otherwise.
    """

    family: Family
    target: str
    name: str
    scheme: str = ""


def is_live_spec(spec: str) -> bool:
    """Return True if `spec` can only be a live source: an address, a camera, `lavfi:` or `loop:`.

    A plain file is not one, although `open_live` takes it; nor is a bare number that is the name of a file.
    """
    if _is_file(spec):
        return False
    prefix = spec.partition(":")[0].lower()
    if prefix in {"camera", "lavfi", "loop"} and ":" in spec:
        return True
    found = _SCHEME.match(spec)
    if found is not None:
        return found.group(1).lower() in NETWORK_SCHEMES
    return spec.isdecimal() or _VIDEO_DEVICE.fullmatch(spec) is not None


def _is_file(text: str) -> bool:
    """Return True if there is such a file; an address may be too long for a file name."""
    try:
        return Path(text).is_file()
    except OSError:
        return False


def hidden(spec: str) -> str:
    """Return the text without users, passwords and secret parameters of addresses in it."""
    return public_name(redact_url(spec))


def parse_spec(spec: str) -> LiveSpec:
    """Return the live source that `spec` names.

    Raises:
        SourceNotFound: The input is empty, or a file that does not exist.
        NotAMediaFile: The kind of address is not supported.
    """
    text = spec.strip()
    if not text or any(ord(letter) < 32 for letter in text):
        raise SourceNotFound(
            "no live source was given" if not text else f"{hidden(text)!r}: no such source", remedy=_KINDS
        )
    prefix, colon, rest = text.partition(":")
    prefix = prefix.lower()
    if colon and not _is_file(text):
        if prefix == "camera":
            return LiveSpec("camera", _given(rest, "camera:0 or camera:NAME"), text)
        if prefix == "lavfi":
            return LiveSpec("lavfi", _given(rest, "lavfi:testsrc2"), hidden(text))
        if prefix == "loop":
            return LiveSpec("loop", local_spec(_given(rest, "loop:video.mp4")), hidden(text))
    found = _SCHEME.match(text)
    if found is not None and found.group(1).lower() != "file":
        return _address(text, found.group(1).lower())
    if is_live_spec(text):
        return LiveSpec("camera", text, text)
    return LiveSpec("file", local_spec(text), hidden(text))


_KINDS = (
    "give an address such as rtsp://host/stream, a camera such as 0 or camera:NAME, lavfi:testsrc2, loop:FILE or FILE"
)


def _given(rest: str, example: str) -> str:
    if not rest.strip():
        raise SourceNotFound("no live source was given", remedy=f"write {example}")
    return rest.strip()


def _address(text: str, scheme: str) -> LiveSpec:
    name = hidden(text)
    if scheme not in NETWORK_SCHEMES:
        known = ", ".join(sorted(NETWORK_SCHEMES))
        raise NotAMediaFile(f"{name}: addresses of kind {scheme!r} are not read", remedy=f"known are {known}")
    return LiveSpec("network", text, name, scheme)


def asked_size(settings: Settings) -> tuple[int, int] | None:
    """Return width and height in pixels; None leaves it to the source.

    Raises:
        InvalidSetting: `live.size` is neither `auto` nor WIDTHxHEIGHT.
    """
    text = settings.live.size.strip().lower()
    if text in {"", "auto"}:
        return None
    found = re.fullmatch(r"(\d{1,5})\s*[x×]\s*(\d{1,5})", text)
    if found is None or not int(found[1]) or not int(found[2]):
        raise InvalidSetting(f"live.size={settings.live.size!r}: not a size", remedy="write it as 1280x720, or auto")
    return int(found[1]), int(found[2])
