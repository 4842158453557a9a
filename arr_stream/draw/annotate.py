"""Annotated video: the chosen cells and the answers, drawn on the frames at their own times; without sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from arr_stream.config import Settings, VideoSettings
from arr_stream.consumer import Outcome
from arr_stream.draw.mp4 import Mp4Writer
from arr_stream.draw.overlay import Caption, Strip, draw_objects, draw_patches
from arr_stream.draw.views import check_view, render
from arr_stream.errors import OutputError, OutputUnwritable
from arr_stream.files import make_parent, prepare_output
from arr_stream.keyframes.base import resized
from arr_stream.patch_set import PatchSet
from arr_stream.processes import usable_cores
from arr_stream.sources.base import SourceInfo
from arr_stream.types import ByteArray, Frame

_SUFFIXES = (".mp4", ".m4v", ".mov")
_USUAL_FPS = 25.0


class Annotator:
    """Painter of chosen cells and answers; keeps the state of the strip and the caption from frame to frame.

    Args:
        view: View to show, see `arr_stream.draw.views`; may be changed at any time.
        asked: The queries, for the strip.

    Raises:
        InvalidSetting: There is no such view.
    """

    def __init__(self, view: str = "patches", *, asked: str | None = None) -> None:
        self.view = check_view(view)
        self.caption = Caption()
        self.ask(asked)

    def ask(self, asked: str | None) -> None:
        """Replace the queries."""
        self._strip = Strip(asked)

    def update(self, patches: PatchSet) -> None:
        """Note the answers that came with a frame; call once a frame, before it is drawn."""
        self.caption.update(patches)

    def picture(self, frame: Frame, patches: PatchSet, size_wh: tuple[int, int] | None = None) -> ByteArray:
        """Draw the view of a frame, `[H, W, 3]` uint8, with marks for the cells of an answer.

        Args:
            frame, patches: The frame and its patch set.
            size_wh: Size of the picture in pixels; the frame's own if not given.
        """
        size_wh = size_wh or frame.size_wh
        if self.view == "patches":
            # Drawn at the output size, so that outlines stay fine.
            picture = draw_patches(resized(frame.rgb, size_wh), patches)
        else:
            picture = resized(render(self.view, frame, patches), size_wh)
        draw_objects(picture, patches.objects)
        self.caption.draw_marks(picture, patches)
        return picture

    def finish(self, picture: ByteArray, patches: PatchSet) -> None:
        """Write the caption and the strip onto the foot of a picture, in place."""
        self.caption.draw(picture)
        self._strip.draw(picture, patches)


class AnnotatedVideo:
    """Writer of an MP4 (H.264, yuv420p) that browsers play.

    Frames keep their own times, so that uneven ones stay uneven. The file grows under a partial name and gets its own
    name when it is closed; after an error the frames written so far are kept.

    Args:
        path: Output file; ends in .mp4, .m4v or .mov.
        size_wh: Size of the first frame in pixels; frames of another size are fitted into it.
        source: Source of the frames, for frame rate and pixel shape.
        settings: Quality.
        force: Replace an existing file.
        start_seconds: Time of the source that is 0.0 in the output.
        view, asked: See `Annotator`.

    Raises:
        InvalidSetting: There is no such view.
        OutputExists: The file exists and `force` is not set.
        OutputUnwritable: It cannot be written, or its name is not one of an MP4.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        size_wh: tuple[int, int],
        source: SourceInfo,
        view: str = "patches",
        settings: VideoSettings | None = None,
        force: bool = False,
        start_seconds: float = 0.0,
        asked: str | None = None,
    ) -> None:
        self._settings = settings or Settings().video
        self._annotator = Annotator(view, asked=asked)
        if Path(path).suffix.lower() not in _SUFFIXES:
            raise OutputUnwritable(
                f"{path}: videos are written as MP4", remedy=f"end the name in {', '.join(_SUFFIXES)}"
            )
        self.path = prepare_output(path, force)
        self._size_wh, self._source = size_wh, source
        self._force, self._start = force, start_seconds
        self._writer: Mp4Writer | None = None
        self._closed = False
        self._to_read: ByteArray | None = None
        self._reading_seconds = 0.0

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Draw one frame and encode it; after an `OutputError` the earlier frames are kept."""
        if self._closed:
            raise ValueError(f"{self.path}: closed, and given another frame")
        picture = self.draw(frame, patches)
        self._reading_seconds = self._annotator.caption.fresh_seconds(patches)
        self._to_read = picture if self._reading_seconds else None
        writer = self._writer or self._open(frame.pts_seconds)
        writer.write(picture, frame.pts_seconds - self._start)

    def draw(self, frame: Frame, patches: PatchSet) -> ByteArray:
        """Return the annotated picture, `[H, W, 3]` uint8 of the video's size, without changing `frame`."""
        self._annotator.update(patches)
        picture = self._annotator.picture(frame, patches)
        if frame.size_wh != self._size_wh:
            picture = np.array(ImageOps.pad(Image.fromarray(picture), self._size_wh))
        self._annotator.finish(picture, patches)
        return picture

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Finish the file and rename it; raises no `OutputError` after `failed`, since the caller knows the cause."""
        if self._closed:
            return
        self._closed = True
        writer = self._writer
        if writer is None:
            return
        try:
            self._finish(writer, whole=not failed)
        except OutputError:
            writer.salvage(force=self._force)
            if not failed:
                raise
        else:
            writer.publish(force=self._force)

    def _open(self, first_pts_seconds: float) -> Mp4Writer:
        make_parent(self.path)
        self._start = min(self._start, first_pts_seconds)
        self._writer = Mp4Writer(
            self.path,
            size_wh=self._size_wh,
            settings=self._settings,
            frame_seconds=1.0 / (self._source.average_fps or _USUAL_FPS),
            pixel_aspect=self._source.pixel_aspect or 1.0,
            # Frames are processed at the same time: on two cores, more encoder threads would slow that down.
            threads=1 if usable_cores() <= 2 else 0,
        )
        return self._writer

    def _finish(self, writer: Mp4Writer, *, whole: bool) -> None:
        try:
            if whole and self._to_read is not None:
                # An answer to the whole video comes with its last picture, which stays until a user can have read it.
                # Twice, since a file's last picture lasts as long as the one before it.
                frame_seconds = writer.end_seconds - writer.last_seconds
                writer.write(self._to_read, writer.last_seconds + max(0.0, self._reading_seconds - 2 * frame_seconds))
                writer.write(self._to_read, writer.last_seconds + frame_seconds)
        finally:
            writer.finish()
