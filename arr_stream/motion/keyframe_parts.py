"""Which parts of which keyframes are in use or awaited, and the way back to each of those frames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from arr_stream.keyframes.base import PARTS, KeyframePart, PartName
from arr_stream.types import Grid

Way = TypeVar("Way")


@dataclass(eq=False)
class KeyframeParts(ABC, Generic[Way]):
    """The bookkeeping of one stream at one frame size.

    Each part of a keyframe is carried from the frame it was made from, so parts of different keyframes stand side by
    side until the late ones arrive. What a way back is made of is for those who carry along it to say.

    Args:
        grid: The cells; a changed size needs new bookkeeping.
    """

    grid: Grid
    _parts: dict[PartName, KeyframePart] = field(init=False, default_factory=dict)
    _pending: dict[int, set[PartName]] = field(init=False, default_factory=dict)
    _ways: dict[int, Way] = field(init=False, default_factory=dict)
    _followed: dict[int, Way] = field(init=False, default_factory=dict)

    @abstractmethod
    def _still(self) -> Way:
        """The way back to the present frame itself."""

    def reduced_hw(self, factor: int) -> tuple[int, int]:
        """Rows and columns of the texture divided by `factor`."""
        width, height = self.grid.texture_wh
        return height // factor, width // factor

    def forget(self) -> None:
        """After a cut nothing that was carried holds any more."""
        for held in (self._parts, self._pending, self._ways, self._followed):
            held.clear()

    def requested(self, index: int, parts: Collection[PartName]) -> None:
        """Generation of some parts was asked for on the present frame."""
        self._pending[index] = set(parts)
        self._ways[index] = self._still()

    def adopt(self, part: KeyframePart) -> bool:
        """Use a part from now on, carried to the present; False when it belongs to a scene that is gone."""
        if part.part not in self._pending.get(part.index, ()):
            return False
        self._parts[part.part] = part
        self.dropped(part.index, (part.part,))
        return True

    def dropped(self, index: int, parts: Collection[PartName]) -> None:
        """There is nothing to wait for any more of some parts of frame `index`."""
        waiting = self._pending.get(index, set())
        waiting.difference_update(parts)
        if not waiting:
            self._pending.pop(index, None)
        in_use = {part.index for part in self._parts.values()}
        self._ways = {at: way for at, way in self._ways.items() if at in self._pending or at in in_use}

    def pending(self, part: PartName) -> bool:
        """A part has been asked for and has not arrived."""
        return any(part in waiting for waiting in self._pending.values())

    @property
    def origins(self) -> dict[str, tuple[int, str]]:
        """For each part in use, the keyframe it came from and what made it."""
        return {name: (self._parts[name].index, self._parts[name].backend) for name in PARTS if name in self._parts}

    @property
    def keyframe_index(self) -> int | None:
        """The newest frame of which a part is in use."""
        return max((part.index for part in self._parts.values()), default=None)

    @property
    def keyframe_way(self) -> Way | None:
        """The way back to that frame."""
        index = self.keyframe_index
        return None if index is None else self._ways[index]

    @property
    def anchors(self) -> frozenset[int]:
        """Frames that generation was asked for and whose parts are, or may come, into use."""
        return frozenset(self._ways)

    def follow(self, index: int) -> None:
        """Keep the way back to the present frame, for attention to it that comes later; one frame at a time."""
        self._followed = {index: self._still()}
