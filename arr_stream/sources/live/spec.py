"""Resolution of the user's input to a kind of live source."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from arr_stream.errors import NotAMediaFile, SourceNotFound
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
    if prefix in _PREFIXES and ":" in spec:
        return True
    found = _SCHEME.match(spec)
    if found is not None:
        return found.group(1).lower() in NETWORK_SCHEMES
    return spec.isdecimal() or _VIDEO_DEVICE.fullmatch(spec) is not None


def _is_file(text: str) -> bool:
    # os.path is False for a text that is too long for a file name, where Path raises.
    return os.path.isfile(text)  # noqa: PTH113


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
    name = hidden(text)
    prefix, colon, rest = text.partition(":")
    prefix, rest = prefix.lower(), rest.strip()
    if colon and prefix in _PREFIXES and not _is_file(text):
        if not rest:
            raise SourceNotFound("no live source was given", remedy=f"write {_PREFIXES[prefix]}")
        if prefix == "loop":
            return LiveSpec("loop", local_spec(rest), name)
        return LiveSpec("camera" if prefix == "camera" else "lavfi", rest, name)
    found = _SCHEME.match(text)
    scheme = found.group(1).lower() if found is not None else "file"
    if scheme != "file":
        if scheme not in NETWORK_SCHEMES:
            known = ", ".join(sorted(NETWORK_SCHEMES))
            raise NotAMediaFile(f"{name}: addresses of kind {scheme!r} are not read", remedy=f"known are {known}")
        return LiveSpec("network", text, name, scheme)
    if is_live_spec(text):
        return LiveSpec("camera", text, text)
    return LiveSpec("file", local_spec(text), name)


_PREFIXES = {"camera": "camera:0 or camera:NAME", "lavfi": "lavfi:testsrc2", "loop": "loop:video.mp4"}
"""Prefixes of sources, with an example."""
_KINDS = (
    "give an address such as rtsp://host/stream, a camera such as 0 or camera:NAME, lavfi:testsrc2, loop:FILE or FILE"
)
