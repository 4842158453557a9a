"""Refresh schedule: requests keyframes when they are due, retries them, and adopts the results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from arr_stream.config import KeyframeSettings
from arr_stream.keyframes.base import PARTS, PartName
from arr_stream.keyframes.generate import KeyframeFailure, KeyframeProvider, KeyframeRequest
from arr_stream.motion.keyframe_results import KeyframeResults, inner_places, window_around
from arr_stream.types import Frame

RefreshReason = Literal["first", "size", "cut", "query", "retry", "interval", "confidence"]

WINDOW_EVERY = 3
"""Fewest frames between two requests for new places."""
TEXT_EVERY = 10
"""Fewest frames between two text searches."""
OBJECTS_EVERY = 15
"""Fewest frames between two object detections."""
LEAST_NEW, MOST_NEW = 0.01, 0.3
"""Bounds of the new share of a frame within which text is searched between keyframes."""
WINDOW_COST_CELLS = 10
"""Fixed cost of a window request, in cells, measured with the tiny encoder."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """State of a frame that may make a refresh due.

    Args:
        confidence: Mean trust in carried data, in [0, 1].
        size_changed, cut: True on the frame itself.
        query_changed: A query changed since the last refresh.
        needed: Parts that queries need.
        window_share: Largest share of a keyframe's cost that is spent on new places until the next.
        asked: There are queries.
        query_dominates: The selection follows queries that need no text.
        objects_doubtful: The place of a queried object is uncertain.
    """

    confidence: float
    size_changed: bool
    cut: bool
    query_changed: bool
    needed: frozenset[PartName]
    window_share: float = 0.0
    asked: bool = False
    query_dominates: bool = False
    objects_doubtful: bool = False


@dataclass(slots=True)
class Refresher:
    """Refreshes of one stream at one frame size.

    Args:
        provider: Makes keyframes.
        results: Results that the made parts join.
    """

    provider: KeyframeProvider
    results: KeyframeResults
    _requested_index: int | None = field(init=False, default=None)
    _owed: RefreshReason | None = field(init=False, default=None)
    _owed_parts: tuple[PartName, ...] = field(init=False, default=())
    _asked_parts: tuple[PartName, ...] = field(init=False, default=())
    _failed: bool = field(init=False, default=False)
    _damaged: bool = field(init=False, default=False)
    _whole_text_index: int | None = field(init=False, default=None)
    _text_index: int | None = field(init=False, default=None)
    _window_index: int | None = field(init=False, default=None)
    _window_failed: bool = field(init=False, default=False)
    _credit_cells: float = field(init=False, default=0.0)
    _credit_index: int | None = field(init=False, default=None)

    def step(
        self, frame: Frame, occasion: Occasion, settings: KeyframeSettings, interval_factor: int
    ) -> tuple[RefreshReason | None, tuple[str, ...]]:
        """Request generation when it is due, and adopt arrived parts; return the reason of a request, and notices."""
        self._damaged |= frame.damaged
        reason = self._due(frame, occasion, settings, interval_factor) or self._owed
        whole_text = self._text_is_due(frame, occasion, settings.text_interval * interval_factor)
        auto = settings.text == "auto"
        left_out = {"text"} if auto and occasion.query_dominates and not whole_text else set()
        # One detection at a time, so that each starts from the track numbers of the previous one.
        if "objects" not in occasion.needed or self.results.pending("objects"):
            left_out.add("objects")
        renewed = tuple(part for part in PARTS if part not in left_out)
        wanted = renewed if reason is not None else self._owed_parts
        accepted = self._submit(frame, wanted, occasion, whole_text=whole_text)
        if reason is not None and accepted:
            self._requested_index, self._owed, self._asked_parts = frame.index, None, accepted
            self._window_failed, self._damaged = False, frame.damaged
        elif reason is not None:
            # All workers are busy with a past scene; the refresh stays due.
            reason, self._owed = None, reason
        elif not wanted:
            asked, every = "text" in occasion.needed, TEXT_EVERY * interval_factor
            requested = auto and not occasion.query_dominates and self._look_for_text(frame, asked=asked, every=every)
            if occasion.objects_doubtful and not requested:
                requested = self._look_for_objects(frame, interval_factor)
            if occasion.window_share and not requested:
                self._look_at_new(frame, occasion, settings.interval * interval_factor)
        return reason, self._collect()

    def _due(
        self, frame: Frame, occasion: Occasion, settings: KeyframeSettings, interval_factor: int
    ) -> RefreshReason | None:
        """Return the most urgent reason for a refresh on this frame, or None.

        `interval_factor` multiplies the interval of periodic refreshes. A failed generation is retried when the next
        keyframe is due, since an error mostly repeats on the next frame.
        Low confidence waits for `min_interval` frames, so that fast motion does not turn every frame into a keyframe,
        and for a sound frame. Data carried over damaged frames are always renewed then.
        """
        age_frames = 0 if self._requested_index is None else frame.index - self._requested_index
        if occasion.size_changed:
            return "size"
        if occasion.cut:
            return "cut"
        if self._asked_parts and all(self.results.pending(part) for part in self._asked_parts):
            return None
        if occasion.query_changed and self._missing(occasion):
            return "query"
        if self.results.newest_index is None and not self._failed:
            return "first"
        if age_frames >= settings.interval * interval_factor:
            return "retry" if self._failed else "interval"
        doubtful = (occasion.confidence < settings.min_confidence or self._damaged) and not frame.damaged
        late = age_frames >= settings.min_interval
        return "confidence" if doubtful and late and not self._failed else None

    def _missing(self, occasion: Occasion) -> frozenset[PartName]:
        """Return the parts that queries need and that were never made in this scene."""
        return frozenset(part for part in occasion.needed if self.results.origin(part) is None)

    def _text_is_due(self, frame: Frame, occasion: Occasion, interval: int) -> bool:
        """Return whether a text search of the whole frame is due, not only of new places."""
        if occasion.cut or occasion.size_changed or "text" in occasion.needed or self._whole_text_index is None:
            return True
        return frame.index - self._whole_text_index >= interval

    def _submit(
        self, frame: Frame, wanted: tuple[PartName, ...], occasion: Occasion, *, whole_text: bool
    ) -> tuple[PartName, ...]:
        """Request parts and return the accepted ones; busy ones are retried on the next frames."""
        if not wanted:
            return ()
        awaited = self._missing(occasion)
        new_scene = occasion.cut or occasion.size_changed or self._requested_index is None
        text_before = self.results.text_before(frame.rgb) if "text" in wanted else None
        if whole_text and text_before is not None:
            text_before = replace(text_before, new=np.ones_like(text_before.new))
        request = KeyframeRequest(frame, self.results.grid, wanted, awaited, new_scene, occasion.asked, text_before)
        accepted = self.provider.submit(request)
        if accepted:
            self.results.record_request(frame.index, accepted)
        if whole_text and "text" in accepted:
            self._whole_text_index = frame.index
        self._owed_parts = tuple(part for part in wanted if part not in accepted)
        return accepted

    def _look_for_text(self, frame: Frame, *, asked: bool, every: int) -> bool:
        """Request doubtful text and, if there is any or a query needs text, text in new places.

        Content that a moving camera brings in at the edges waits for a keyframe, unless a query needs text. Return
        whether a request was made.
        """
        found_index = self.results.origin("text")
        # After a failure, the next keyframe searches for text.
        if found_index is None or self._whole_text_index is None or self.results.pending("text"):
            return False
        if frame.index - max(found_index, self._text_index or 0) < every:
            return False
        self._text_index = frame.index
        before = self.results.text_before(frame.rgb)
        assert before is not None
        new = before.new if asked else inner_places(before.new)
        if not ((asked or before.known or before.doubtful) and LEAST_NEW <= new.mean() <= MOST_NEW):
            new = np.zeros_like(new)
        if not (new.any() or before.doubtful):
            return False
        request = KeyframeRequest(
            frame, self.results.grid, ("text",), text_before=replace(before, new=new), window=True
        )
        if not self.provider.submit(request):
            return False
        self.results.record_text_request(frame.index, before.doubtful, new)
        return True

    def _look_for_objects(self, frame: Frame, factor: int) -> bool:
        """Request objects if the last ones are old enough; return whether a request was made."""
        found_index = self.results.origin("objects")
        if found_index is None or self.results.pending("objects"):
            return False
        if frame.index - found_index < OBJECTS_EVERY * factor:
            return False
        accepted = self.provider.submit(KeyframeRequest(frame, self.results.grid, ("objects",), window=True))
        if accepted:
            self.results.record_request(frame.index, accepted)
        return bool(accepted)

    def _look_at_new(self, frame: Frame, occasion: Occasion, interval: int) -> None:
        """Request the embedding of new places, within a share of a keyframe's cost per interval.

        A window may exceed the saved cost; later ones then wait until that is repaid.
        """
        grid, before, self._credit_index = self.results.grid, self._credit_index, frame.index
        elapsed = 0 if before is None else frame.index - before
        most = occasion.window_share * grid.cells
        self._credit_cells = min(most, self._credit_cells + most * elapsed / interval)
        last = self._window_index
        if self._window_failed or self._credit_cells <= 0 or (last is not None and frame.index - last < WINDOW_EVERY):
            return
        new = self.results.new_places
        window = None if new is None else window_around(new, grid)
        if window is None:
            return
        part, part_grid = window.cut(frame, grid)
        if self.provider.submit(KeyframeRequest(part, part_grid, ("embedding",), window=True)):
            self.results.record_window_request(frame.index, window)
            self._window_index = frame.index
            self._credit_cells -= window.cells + WINDOW_COST_CELLS

    def _collect(self) -> tuple[str, ...]:
        """Adopt the arrived parts; return notices of those that failed."""
        notices: list[str] = []
        for outcome in self.provider.collect():
            of_window = outcome.index == self._window_index
            if not isinstance(outcome, KeyframeFailure):
                if self.results.adopt(outcome) and not of_window:
                    self._failed = False
                continue
            self.results.drop_request(outcome.index, outcome.parts)
            if of_window:
                self._window_failed, what = True, "new places of frame"
            else:
                if "text" in outcome.parts:
                    self._whole_text_index = None
                self._failed = set(outcome.parts) >= set(self._asked_parts) or self.results.newest_index is None
                what = "looking for text on frame" if outcome.index == self._text_index else "keyframe"
            notices.append(f"{what} {outcome.index} failed: {outcome.message}; next try at the next keyframe")
        return tuple(notices)
