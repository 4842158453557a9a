"""Alerts: rules checked on every frame, with clips and messages.

Only the rules run in the frame loop. Drawing, encoding and sending run in other threads; a picture that they are too
slow for is missing from the clips and counted, but no alert is lost.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arr_stream.config import VideoSettings
from arr_stream.consumer import Outcome
from arr_stream.live.clips import DEFAULT_MOST_BYTES, ClipRecorder
from arr_stream.live.rules import RuleWatch, parse_rule
from arr_stream.live.webhook import Alert, Notice, Webhook
from arr_stream.patch_set import PatchSet
from arr_stream.types import ByteArray, Frame

Draw = Callable[[Frame, PatchSet], ByteArray]

_WAITING_FRAMES = 8
"""Most queued frames; each holds its texture, a few MB."""
_SILENT_SECONDS = 2.0
_LAST_CLIP_SECONDS = 5.0
_JOIN_SECONDS = 10.0
_KEPT_NOTICES = 100


class Alerts:
    """Consumer that checks the rules on every frame.

    Args:
        rules: See `arr_stream.live.rules`.
        stream_name: For records and file names.
        clip_folder: Folder for clips, created when needed; None to record none.
        before_seconds, after_seconds: Stream time that a clip shows around an alert.
        webhooks: Each alert goes to each of them; closed with this consumer.
        on_alert: Called with each alert, in another thread.
        on_notice: Called with each notice, in any thread.
        draw: Draws the pictures of the clips, `[H, W, 3]` uint8, in another thread; None for the plain frames.
        max_clips_bytes: The oldest clips are deleted when all clips of the folder have more.
        cooldown_seconds: Least stream time between two alerts of one rule.
        video: Quality of the clips.

    Attributes:
        dropped: Pictures missing from the clips.
        notices: The newest one-line messages, such as the reason why a clip could not be written, oldest first.

    Raises:
        InvalidSetting: A text that is no rule.
    """

    def __init__(
        self,
        rules: Sequence[str],
        *,
        stream_name: str = "stream",
        clip_folder: Path | None = None,
        before_seconds: float = 3.0,
        after_seconds: float = 3.0,
        webhooks: Sequence[Webhook] = (),
        on_alert: Callable[[Alert], None] | None = None,
        on_notice: Callable[[str], None] | None = None,
        draw: Draw | None = None,
        max_clips_bytes: int = DEFAULT_MOST_BYTES,
        cooldown_seconds: float = 10.0,
        video: VideoSettings | None = None,
    ) -> None:
        self.dropped = 0
        self.notices: deque[str] = deque(maxlen=_KEPT_NOTICES)
        self._stream_name = stream_name
        self._watches = [RuleWatch(parse_rule(rule), cooldown_seconds) for rule in rules]
        self._webhooks = tuple(webhooks)
        self._on_alert, self._on_notice, self._draw = on_alert, on_notice, draw
        self._draws_fail = False
        self._silent_seconds = after_seconds + _SILENT_SECONDS
        self._recorder: ClipRecorder | None = None
        if clip_folder is not None:
            self._recorder = ClipRecorder(
                clip_folder,
                stream_name=stream_name,
                before_seconds=before_seconds,
                after_seconds=after_seconds,
                most_bytes=max_clips_bytes,
                settings=video,
                on_notice=self._notice,
            )
        self._waiting: deque[tuple[Frame, PatchSet] | Alert] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="arr-stream-alerts", daemon=True)
        self._thread.start()

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Check the rules on one frame; other threads do the rest.

        Raises:
            ValueError: Closed already.
        """
        if self._closed:
            raise ValueError("the alerts are closed, and given another frame")
        fired = [
            Alert(watch.rule.text, message, frame.index, frame.pts_seconds, time.time(), self._stream_name)
            for watch in self._watches
            if (message := watch.look(patches)) is not None
        ]
        with self._changed:
            left_out = self._recorder is not None and len(self._waiting) >= _WAITING_FRAMES
            if self._recorder is not None and not left_out:
                self._waiting.append((frame, patches))
            self._waiting.extend(fired)
            self._changed.notify()
        if left_out:
            self.dropped += 1
            if self.dropped == 1:
                self._notice("clips: pictures come faster than they can be kept; some are missing from the clips")

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Finish the clip in progress, and end every thread, within seconds."""
        if self._closed:
            return
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_JOIN_SECONDS)
        # In parallel, since each may take seconds.
        closing = [threading.Thread(target=webhook.close, name="arr-stream-closing") for webhook in self._webhooks]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _work(self) -> None:
        """Handle pictures and alerts in order, and write clips in between; runs in the worker thread."""
        recorder = self._recorder
        quiet_since = time.monotonic()
        while (item := self._taken()) is not None or not self._closed:
            with self._failures_told():
                if item is not None:
                    quiet_since = time.monotonic()
                if isinstance(item, Alert):
                    self._set_off(item)
                elif recorder is not None and item is not None:
                    recorder.add(item[0].pts_seconds, self._drawn(*item))
                elif recorder is not None and recorder.behind:
                    recorder.write_some()
                elif recorder is not None and time.monotonic() - quiet_since > self._silent_seconds:
                    # The source is silent, so no further picture will come for the clip.
                    recorder.finish()
        if recorder is not None:
            with self._failures_told():
                recorder.finish(most_seconds=_LAST_CLIP_SECONDS)

    @contextlib.contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except Exception as exc:
            self._notice(f"alerts: {type(exc).__name__}: {exc}")

    def _taken(self) -> tuple[Frame, PatchSet] | Alert | None:
        """Return the next item, or None without one."""
        recorder = self._recorder
        longest = None
        if recorder is not None and recorder.recording:
            # Without a clip in progress there is nothing to do periodically.
            longest = 0.0 if recorder.behind else 0.5
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, longest)
            return self._waiting.popleft() if self._waiting else None

    def _set_off(self, alert: Alert) -> None:
        path = None
        if self._recorder is not None:
            path = self._recorder.start(alert.pts_seconds, alert.rule, alert.made_unix)
        alert = replace(alert, clip_path=path)
        for webhook in self._webhooks:
            webhook.send(alert, self._notice)
        if self._on_alert is not None:
            self._on_alert(alert)

    def _drawn(self, frame: Frame, patches: PatchSet) -> ByteArray:
        if self._draw is None:
            return frame.rgb
        try:
            return self._draw(frame, patches)
        except Exception as exc:
            if not self._draws_fail:
                self._notice(
                    f"clips: shown as the source gives them, since drawing failed: {type(exc).__name__}: {exc}"
                )
            self._draws_fail = True
            return frame.rgb

    def _notice(self, line: str) -> None:
        self.notices.append(line)
        if self._on_notice is not None:
            self._on_notice(line)


@dataclass(frozen=True, slots=True)
class AlertPlan:
    """Rules for streams, and the actions of their alerts.

    Args:
        rules: See `arr_stream.live.rules`; empty for no alerts.
        before_seconds, after_seconds: Stream time that a clip shows around an alert.
        clip_folder: Folder for clips; None for no clips.
        addresses: Webhook addresses.

    Raises:
        InvalidSetting: A malformed rule or address.
    """

    rules: tuple[str, ...] = ()
    before_seconds: float = 3.0
    after_seconds: float = 3.0
    clip_folder: Path | None = None
    addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for rule in self.rules:
            parse_rule(rule)
        for address in self.addresses:
            Webhook(address)

    def alerts(
        self,
        stream_name: str,
        *,
        on_alert: Callable[[Alert], None],
        on_notice: Notice,
        draw: Draw,
        video: VideoSettings,
    ) -> Alerts:
        """Return the consumer for one stream; see `Alerts`."""
        return Alerts(
            self.rules,
            stream_name=stream_name,
            clip_folder=self.clip_folder,
            before_seconds=self.before_seconds,
            after_seconds=self.after_seconds,
            webhooks=[Webhook(address) for address in self.addresses],
            on_alert=on_alert,
            on_notice=on_notice,
            draw=draw,
            video=video,
        )
