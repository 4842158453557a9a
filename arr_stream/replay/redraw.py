"""The annotated video drawn again from source and records: no model is loaded, and no cell is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from arr_stream.config import Settings
from arr_stream.consumer import BackgroundConsumer, Outcome
from arr_stream.draw.annotate import AnnotatedVideo
from arr_stream.draw.views import check_view
from arr_stream.errors import InvalidSetting, NothingInRange, SourceChanged
from arr_stream.patch_set import PatchSet
from arr_stream.records.provenance import AskedRegion
from arr_stream.records.rebuild import rebuilt
from arr_stream.records.recording import RecordedFrame, Recording, open_recorded
from arr_stream.sources.base import Source
from arr_stream.types import Frame

VIEWS = ("patches", "source")
"""Views that need no channels."""

_SAME_TIME_SECONDS = 2e-6
_LONGEST_CAPTION_SECONDS = 10.0


def check_replay_view(view: str) -> str:
    """The view's name, if records hold what it shows.

    Raises:
        InvalidSetting: They do not, or there is no such view.
    """
    if check_view(view) not in VIEWS:
        raise InvalidSetting(
            f"view {view}: records do not hold what it shows; {' and '.join(VIEWS)} can be drawn from them",
            remedy="--rerun makes the rest anew",
        )
    return view


class RecordedStream:
    """The frames of a source with what records say of them, in place of a `Stream`.

    Args:
        recording: The records.
        given: Where the source is now; None for where it was.
        start_seconds, end_seconds: Only frames at or after the one time and before the other.
        settings: For decoding, and for the video; None for those in the records.

    Attributes:
        source: Opened; closed with this.
        frame: The frame of the last patch set.
        dropped: Frames that were passed over when the records were made.
        earlier: Patch sets before the first that still show on it: the last keyframe's, the last that went to a model,
            and those with answers that are still being read.

    Raises:
        NothingInRange: No record is in that range.
        SourceError, EvaluationDataError: As `open_recorded` and `Recording`.
    """

    realtime = False

    def __init__(
        self,
        recording: Recording,
        given: str | None = None,
        *,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        settings: Settings | None = None,
    ) -> None:
        settings = settings or recording.settings_for_drawing()
        self.recording, self.settings = recording, settings
        self.frame: Frame | None = None
        self.dropped = 0
        self.look_ahead = self.last = False
        self._records = iter(recording)
        self._end = math.inf if end_seconds is None else end_seconds
        self._next, earlier = _skipped(self._records, recording, start_seconds)
        first = self._next.record
        if first.pts_seconds >= self._end:
            raise NothingInRange(
                f"end {self._end:g} s is not after the first frame, at {first.pts_seconds:g} s",
                remedy="give a later end",
            )
        self.earlier = [rebuilt(each.record, recording.header, each.answers) for each in earlier]
        # Counted from the first frame read: the source itself counts from 0 wherever it starts.
        self._first_index = first.index if start_seconds is not None else 0
        self.source: Source = open_recorded(
            recording,
            given,
            start_seconds=first.pts_seconds if start_seconds is not None else None,
            max_pixels=settings.source.max_pixels,
        )

    def __iter__(self) -> Iterator[PatchSet]:
        frames = self.source.frames()
        recorded: RecordedFrame | None = self._next
        try:
            while recorded is not None and recorded.record.pts_seconds < self._end:
                self.frame = self._frame_of(recorded, frames)
                yield rebuilt(
                    recorded.record, self.recording.header, recorded.answers, pts_seconds=self.frame.pts_seconds
                )
                recorded = next(self._records, None)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of files; safe to call again."""
        self.source.close()

    def _frame_of(self, recorded: RecordedFrame, frames: Iterator[Frame]) -> Frame:
        """The frame that a record is of; what was passed over in real time is passed over again."""
        record = recorded.record
        for frame in frames:
            index = frame.index + self._first_index
            if index < record.index:
                self.dropped += 1
                continue
            found = Frame(index, frame.pts_seconds, frame.rgb)
            expected = record.frame_size_wh or self.recording.header.frame_size_wh
            if abs(found.pts_seconds - record.pts_seconds) > _SAME_TIME_SECONDS or found.size_wh != expected:
                raise self._changed(
                    f"frame {index} is {found.size_wh[0]}x{found.size_wh[1]} at {found.pts_seconds:.6f} s, and in the "
                    f"records {expected[0]}x{expected[1]} at {record.pts_seconds:.6f} s"
                )
            return found
        raise self._changed(f"it ends before frame {record.index}, of which the records tell")

    def _changed(self, what: str) -> SourceChanged:
        return SourceChanged(
            f"{self.source.info.name}: not what the records were made of: {what}",
            remedy="name the right source after the records",
        )


def redrawn_video(
    stream: RecordedStream,
    path: Path,
    *,
    view: str = "patches",
    audio: bool = True,
    force: bool = False,
    start_seconds: float | None = None,
    end_seconds: float | None = None,
) -> BackgroundConsumer:
    """A consumer that draws the video as it was drawn when the records were made.

    Args:
        stream: What is going to be drawn.
        path: Where to.
        view: `patches` or `source`.
        audio: Keep the source's sound.
        force: Replace a file that exists.
        start_seconds, end_seconds: As the stream's.

    Raises:
        InvalidSetting: The view needs more than records hold.
        OutputError: As `AnnotatedVideo`.
    """
    recording = stream.recording
    asked = recording.provenance.queries
    region = next((query for query in asked if isinstance(query, AskedRegion)), None)
    x, y, w, h = region.xywh if region is not None else (0.0, 0.0, 0.0, 0.0)
    reading = recording.provenance.reading
    ends = [end for end in (reading.end_seconds, end_seconds) if end is not None]
    video = AnnotatedVideo(
        path,
        size_wh=recording.header.frame_size_wh,
        source=stream.source.info,
        view=check_replay_view(view),
        settings=stream.settings.video,
        force=force,
        audio=audio,
        start_seconds=max(reading.start_seconds or 0.0, start_seconds or 0.0),
        end_seconds=min(ends, default=None),
        asked=_labels(recording),
        region_xyxy=(x, y, x + w, y + h) if region is not None else None,
        region_at_seconds=region.at_seconds if region is not None else 0.0,
    )
    return BackgroundConsumer(_Continued(video, stream.earlier))


class _Continued:
    """A video that goes on from frames before its first: what they left on the strip and in the caption is there."""

    def __init__(self, video: AnnotatedVideo, earlier: list[PatchSet]) -> None:
        self._video, self._earlier = video, earlier

    @property
    def notices(self) -> list[str]:
        return self._video.notices

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        for before in self._earlier:
            self._video.draw(frame, before)
        self._earlier = []
        self._video.consume(frame, patches)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        self._video.close(failed=failed, outcome=outcome)


def _skipped(
    records: Iterator[RecordedFrame], recording: Recording, start_seconds: float | None
) -> tuple[RecordedFrame, list[RecordedFrame]]:
    """The first record at or after a time, and those before it that still show on it."""
    keyframe: RecordedFrame | None = None
    fed: RecordedFrame | None = None
    answered: list[RecordedFrame] = []
    for each in records:
        if start_seconds is None or each.record.pts_seconds >= start_seconds - _SAME_TIME_SECONDS:
            shown = [
                one for one in answered if one.record.pts_seconds > each.record.pts_seconds - _LONGEST_CAPTION_SECONDS
            ]
            kept = {one.record.index: one for one in (keyframe, fed, *shown) if one is not None}
            return each, [kept[index] for index in sorted(kept)]
        keyframe = each if each.record.keyframe else keyframe
        fed = each if each.record.model is not None else fed
        if each.answers:
            answered = [*answered[-1:], each]
    raise NothingInRange(
        f"{recording.path}: holds no frame" + ("" if start_seconds is None else f" at or after {start_seconds:g} s"),
        remedy="give an earlier start" if start_seconds is not None else "write some with `process ... --patches FILE`",
    )


def _labels(recording: Recording) -> str | None:
    query = recording.header.query
    if isinstance(query, list):
        return ", ".join(str(label) for label in query) or None
    return str(query) if query else None
