"""The same run once more, from what its records say of it, and whether it gives the same records."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from arr_stream.config import Settings
from arr_stream.consumer import Outcome
from arr_stream.errors import NotReplayable, RecordsDiffer, SourceNotFound
from arr_stream.patch_set import PatchSet
from arr_stream.records.digest import Digest, canonical, comparable
from arr_stream.records.json_lines import read_lines
from arr_stream.records.provenance import Asked, AskedExample, AskedMask, AskedRegion, Provenance, environment
from arr_stream.records.recording import Recording, check_file, check_source, missing, source_of
from arr_stream.records.schema import Header, frame_record, header_record
from arr_stream.relevance.query import Query, RegionQuery, load_example, load_mask, parse_text
from arr_stream.stream import Stream
from arr_stream.stream import open as open_stream
from arr_stream.types import Frame


def reopened(recording: Recording, given: str | None, settings: Settings) -> Stream:
    """The stream that records were made of, about to run again.

    Args:
        recording: The records.
        given: Where the source is now; None for where it was.
        settings: Those of the run, see `Recording.settings`.

    Raises:
        NotReplayable: The records do not say all that it takes, or no second run could be the same.
        SourceNotFound, SourceChanged: The source, an example picture or a gaze file is missing, or is another.
        ArrStreamError: Whatever opening a stream raises.
    """
    provenance = _repeatable(recording)
    if provenance.gaze is not None:
        check_file(provenance.gaze)
    queries = [_query(asked) for asked in provenance.queries]
    reading = provenance.reading
    try:
        stream = open_stream(
            source_of(recording, given),
            queries=queries,
            settings=settings,
            gaze_csv=provenance.gaze.path if provenance.gaze is not None else None,
            video_stream=reading.video_stream,
            start_seconds=reading.start_seconds,
            end_seconds=reading.end_seconds,
            stride=reading.stride,
            max_frames=reading.max_frames,
        )
    except SourceNotFound as exc:
        raise missing(recording, exc) from exc
    try:
        check_source(recording, stream.source)
    except BaseException:
        stream.close()
        raise
    return stream


def changed_versions(recording: Recording, settings: Settings) -> list[str]:
    """What results depend on and is not here as it was, such as `numpy 2.3.1, was 2.2.0`."""
    before, now = recording.provenance.versions(), environment(settings).versions()
    return [
        f"{name} {now.get(name, 'missing')}, was {before.get(name, 'missing')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


_WHOLE = ("finished", "damaged")
"""How a run ends that had all frames there were."""


class Comparison:
    """A consumer that compares each frame with its record; times do not count.

    Records of a run that was killed or failed are compared as far as they go.

    Args:
        recording: The records.
        header: Of the run that is compared with them.
        stop: Set when it is known; None lets the run go on.

    Attributes:
        frames: Frames that were the same.
        difference: What the first one that is not the same says otherwise, None as long as there is none.

    Raises:
        EvaluationDataError: A line is malformed (further lines when they are reached).
    """

    def __init__(self, recording: Recording, header: Header, stop: threading.Event | None) -> None:
        self.frames = 0
        self.difference: RecordsDiffer | None = None
        self._recording, self._header, self._stop = recording, header, stop
        self._found, self._read = Digest(), Digest()
        self._lines = read_lines(recording.path)
        self._reason: str | None = None
        self._over = False
        first = next(self._lines)
        self._read.add(first)
        self._take(first, header_record(header), None)
        self._expected = self._following()

    @property
    def verdict(self) -> str:
        """One line on what was the same."""
        frames = "1 frame" if self.frames == 1 else f"{self.frames} frames"
        whole = "" if self._reason in _WHOLE else ", as far as the records go"
        return f"the same records: {frames}{whole}; digest {self._found.hexdigest()}"

    def explains(self, reason: str) -> bool:
        """Whether a run that ended so has ended as the recorded one did, or was ended because all was known."""
        return (reason in _WHOLE and reason == self._reason) or (reason == "interrupted" and self._over)

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        if self.difference is not None:
            return
        if self._expected is not None:
            self._take(self._expected, frame_record(patches, self._header), patches.index)
            self.frames += self.difference is None
            self._expected = self._following()
            if self._expected is None and self._reason not in _WHOLE:
                self._end()
        elif self._reason in _WHOLE:
            self._differ(f"frame {patches.index} comes after the last one in the records", patches.index)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """At the end of a run that went through, every record has had its frame."""
        whole = outcome is not None and outcome.reason in _WHOLE
        if whole and self.difference is None and self._expected is not None:
            index = self._expected["index"]
            self._differ(f"frame {index} is in the records and did not come", index)

    def _take(self, expected: Mapping[str, Any], found: Mapping[str, Any], index: int | None) -> None:
        self._found.add(found)
        if canonical(expected) != canonical(found):
            where = "the header" if index is None else f"frame {index}"
            self._differ(f"{where} is not the same in {_where(expected, found)}", index)

    def _differ(self, what: str, index: int | None) -> None:
        self._end()
        self.difference = self.difference or RecordsDiffer(
            f"{self._recording.path}: {what}",
            frame_index=index,
            remedy="the same input, settings and versions give the same records; see what changed",
        )

    def _end(self) -> None:
        self._over = True
        if self._stop is not None:
            self._stop.set()

    def _following(self) -> dict[str, Any] | None:
        """The next frame's line, None where there is none; at the end line, see whether it fits what stands before."""
        for line in self._lines:
            if line["type"] == "frame":
                self._read.add(line)
                return line
            if line["type"] == "end":
                self._reason = line.get("reason")
                if line.get("digest", self._read.hexdigest()) != self._read.hexdigest():
                    self._differ("was changed after it was written: its digest is not that of its lines", None)
            else:
                self._read.add(line)
        return None


def _where(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The keys under which two lines are not the same."""
    one, other = comparable(expected), comparable(found)
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return ", ".join(keys[:4]) + (" and more" if len(keys) > 4 else "")


def _repeatable(recording: Recording) -> Provenance:
    provenance = recording.header.provenance
    path = recording.path
    if provenance is None or provenance.source is None:
        raise NotReplayable(
            f"{path}: does not say what was asked of which frames: written by an older version",
            remedy="run `arr-stream process` again; the video can be drawn again without --check and --rerun",
        )
    if provenance.realtime:
        raise NotReplayable(
            f"{path}: made in real time, where no two runs are the same", remedy="leave --check and --rerun out"
        )
    if provenance.question is not None:
        raise NotReplayable(
            f"{path}: a model watched, and chose with the question {provenance.question.text!r}",
            remedy="run `arr-stream ask` again; the video can be drawn again without --check and --rerun",
        )
    return provenance


def _query(asked: Asked) -> Query:
    if isinstance(asked, AskedRegion):
        return RegionQuery(asked.xywh, asked.at_seconds)
    if isinstance(asked, AskedMask):
        check_file(asked.picture)
        return load_mask(asked.picture.path, asked.at_seconds)
    if isinstance(asked, AskedExample):
        check_file(asked.picture)
        return load_example(asked.picture.path)
    return parse_text(asked.text)
