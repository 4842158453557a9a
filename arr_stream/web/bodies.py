"""What requests may say; every list and text is bounded, and unknown keys are refused."""

from __future__ import annotations

from typing import Annotated, Literal
from unicodedata import category

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

_UNSEEN = {"Cc", "Zl", "Zp"}
_TURNING = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They change the order in which what follows is shown, in terminals and logs too."""


def _printable(text: str) -> str:
    if any(category(letter) in _UNSEEN or letter in _TURNING for letter in text):
        raise ValueError("control characters are not allowed")
    return text


Line = Annotated[str, StringConstraints(strip_whitespace=True), AfterValidator(_printable)]
Name = Annotated[Line, Field(min_length=1, max_length=80, description="what people call the stream")]
Text = Annotated[Line, Field(min_length=1, max_length=500)]
Texts = Annotated[list[Text], Field(max_length=16, description="what to look for")]
Preset = Annotated[Line, Field(min_length=1, max_length=80, description="name of a preset")]
Value = bool | int | float | Annotated[Line, Field(max_length=80)]
Changes = Annotated[
    dict[Annotated[str, Field(max_length=80)], Value],
    Field(max_length=64, description="settings by dotted key, such as `selection.budget`"),
]
Share = Annotated[float, Field(ge=0, le=1)]


class Body(BaseModel):
    """The shape that all have in common."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class NewStream(Body):
    """A stream to add."""

    source: Annotated[Line, Field(min_length=1, max_length=2000, description="one that the command line allows")]
    name: Name | None = None
    query: Texts = []
    preset: Preset | None = None
    settings: Changes = {}


class StreamChange(Body):
    """What to change; what is left out stays."""

    paused: bool | None = None
    name: Name | None = None
    preset: Preset | None = Field(None, description="null for the defaults; settings go on top")
    settings: Changes = {}


class Region(Body):
    """A box in pixels of the upright frame."""

    xywh: tuple[float, float, float, float]


class NewQuery(Body):
    """What to look for in place of what is looked for now; without `region`, the region stays."""

    texts: Texts
    region: Region | None = None


class Looks(Body):
    """Where someone looks, normalised to [0, 1]."""

    points: Annotated[list[tuple[Share, Share]], Field(max_length=256)]


class NewQuestion(Body):
    """A question to the model."""

    question: Annotated[str, StringConstraints(strip_whitespace=True), Field(min_length=1, max_length=2000)]
    when: Literal["now", "every", "change"] = "now"
    every_seconds: Annotated[float, Field(gt=0, le=86_400)] = 5.0


class Offer(Body):
    """A browser's camera or screen, as WebRTC describes it."""

    sdp: Annotated[str, Field(min_length=1, max_length=200_000)]
    type: Literal["offer"]
    name: Name | None = None
    query: Texts = []
    preset: Preset | None = None
