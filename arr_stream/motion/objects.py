"""Detected objects between the frames on which a detector looked: carried along the flow, and numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arr_stream.motion.flow import Flow, carried_points
from arr_stream.types import DetectedObject, FloatArray

LEAST_TRUST = 0.2
"""Mean trust in an object's points below which its place is unknown until a detector finds it again."""
DOUBTFUL = 0.7
"""Mean trust in queried objects below which a detector should run again."""
_LEAST_OVERLAP, _LEAST_WITHIN = 0.3, 0.7
"""Least intersection over union of two detections of the same object, and least intersection over the smaller of the
two, since a detector may find a part or the whole."""
_NEW_SCORE = 0.25
"""Least score of a new object; a tracked one may be found with less."""
_REPORTED_SCORE = 0.5
"""Score that an object must reach once to be reported: most labels below it are false."""
_MISSED = 0.7
"""Factor on the score of a tracked object that the detector missed."""
_POINTS = np.stack(np.meshgrid(np.linspace(-0.6, 0.6, 4), np.linspace(-0.6, 0.6, 4)), -1).reshape(-1, 2)
"""`[16, 2]`, points of a box that are propagated: offsets from its middle, in halves of its sides."""


def carried_objects(objects: Sequence[DetectedObject], flow: Flow) -> tuple[DetectedObject, ...]:
    """Return objects of an earlier frame at their present places, moved and scaled like most points of each."""
    if not objects:
        return ()
    boxes = np.array([each.box_xyxy for each in objects], np.float32)
    middle, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    points = (middle[:, None] + _POINTS * half[:, None]).astype(np.float32)
    moved, trusts = carried_points(points.reshape(-1, 2), flow)
    offset, trust = moved.reshape(points.shape) - points, trusts.reshape(points.shape[:2])
    # Points without confidence take the motion of the others.
    known = (trust > 0)[..., None]
    offset = np.where(
        known, offset, (offset * known).sum(1, keepdims=True) / np.maximum(known.sum(1, keepdims=True), 1)
    )
    scale = (_spread(points + offset) / np.maximum(_spread(points), 1e-6)).clip(0.5, 2)
    middle = middle + np.median(offset, 1)
    now = np.concatenate([middle - half * scale, middle + half * scale], 1).clip(0, 1)
    carried = []
    for each, (x0, y0, x1, y1), sure in zip(objects, now.tolist(), trust.mean(1).tolist(), strict=True):
        if x0 < x1 and y0 < y1:
            carried.append(replace(each, box_xyxy=(x0, y0, x1, y1), trust=sure))
    return tuple(carried)


def _spread(points: FloatArray) -> FloatArray:
    """Return the mean distance of points `[N, n, 2]` from their mean, on each axis."""
    away: FloatArray = np.abs(points - points.mean(1, keepdims=True)).mean(1)
    return away


class ObjectTracks:
    """Tracks: persistent numbers of objects across detector runs."""

    def __init__(self) -> None:
        self._known: tuple[DetectedObject, ...] = ()
        self._next = 1

    def looked(self, known: Sequence[DetectedObject]) -> None:
        """Store the known objects of a frame on which a detector runs."""
        self._known = tuple(each for each in known if each.trust >= LEAST_TRUST)

    def renewed(self, found: Sequence[DetectedObject]) -> tuple[DetectedObject, ...]:
        """Return the numbered objects on that frame: the detected ones, and those that were missed only a few times.

        A tracked object may be found with a low score, as in Zhang et al., "ByteTrack" (ECCV 2022).
        """
        known, self._known = self._known, ()
        pairs = [(_overlap(a, b), i, j) for i, a in enumerate(found) for j, b in enumerate(known)]
        tracks: dict[int, int] = {}
        for overlap, i, j in sorted(pairs, reverse=True):
            if overlap and i not in tracks and known[j].track not in tracks.values():
                tracks[i] = known[j].track
        for i, each in enumerate(found):
            if i not in tracks and each.score >= _NEW_SCORE:
                tracks[i], self._next = self._next, self._next + 1
        sure = {each.track for each in known if each.sure} | {
            track for i, track in tracks.items() if found[i].score >= _REPORTED_SCORE
        }
        seen = [replace(found[i], track=track, sure=track in sure) for i, track in sorted(tracks.items())]
        lost = [
            each for each in known if each.track not in tracks.values() and not any(_overlap(each, one) for one in seen)
        ]
        missed = (replace(each, score=each.score * _MISSED) for each in lost)
        return (*seen, *(each for each in missed if each.score >= _NEW_SCORE))

    def forget(self) -> None:
        """Restart in a new scene; numbers are not reused."""
        self._known = ()


def _overlap(one: DetectedObject, other: DetectedObject) -> float:
    """Return intersection over union; 0 for objects that are not the same."""
    a, b = np.array(one.box_xyxy), np.array(other.box_xyxy)
    common = np.prod(np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None))
    areas = np.prod(a[2:] - a[:2]), np.prod(b[2:] - b[:2])
    union = sum(areas) - common
    same = common >= min(_LEAST_OVERLAP * union, _LEAST_WITHIN * min(areas))
    return float(common / max(union, 1e-9)) if same and one.label == other.label else 0.0
