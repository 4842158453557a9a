"""Everything that runs during a soak: what `arr-stream serve` runs, with sources that can be disturbed."""

from __future__ import annotations

import contextlib
import http.server
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from arr_stream.config import Settings, public_settings
from arr_stream.consumer import Consumer
from arr_stream.keyframes.sharing import WorkerPool
from arr_stream.live.events import EventHub, Subscription
from arr_stream.live.runner import RunnerParts, StreamRunner
from arr_stream.live.streams import LiveStreams
from arr_stream.live.webhook import Webhook
from arr_stream.patch_set import PatchSet
from arr_stream.records.json_lines import Records
from arr_stream.records.schema import Header
from arr_stream.types import Frame, Grid
from arr_stream.web.access import AllowedSources, make_access
from arr_stream.web.observers import Observer
from arr_stream.web.server import listen, run_server
from arr_stream.web.serving import Serving
from benchmarks.live.process import free_port, start_sender
from soaking.clients import Viewer
from soaking.feed import NAME, Feed
from soaking.footage import FPS
from soaking.keyframes import ORDERS_VARIABLE, SoakedWorkers

OTHER = "http"
SENDER_SIZE_WH = (160, 96)
RULES = ("relevance < 1", "motion > 0.01 for 1s")
_START_SECONDS = 60.0
_END_SECONDS = 40.0
_SETTINGS = {
    "keyframes.text": "none",
    "keyframes.clusters": "grid",
    "keyframes.timeout_seconds": 5.0,
    "selection.budget": "8",
    "live.stall_seconds": 1.5,
    "live.policy": "every",
    "live.buffer_frames": 16,
}


class Progress:
    """A consumer that counts, remembers the newest patch set, and blocks for as long as it is told to.

    Attributes:
        frames: Processed so far, over all runs of the runner.
        block_seconds: The next frame is kept for so long.
        blocked: It is being kept.
    """

    def __init__(self, taken: threading.Event | None = None) -> None:
        self.frames = 0
        self.newest: PatchSet | None = None
        self.block_seconds = 0.0
        self._blocking = False
        self._taken = taken

    @property
    def blocked(self) -> bool:
        return self._blocking or self.block_seconds > 0

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        self.frames += 1
        self.newest = patches
        if self._taken is not None:
            self._taken.set()
        if self.block_seconds:
            self._blocking = True
            time.sleep(self.block_seconds)
            self.block_seconds, self._blocking = 0.0, False

    def close(self, *, failed: bool = False, outcome: object = None) -> None: ...


class Stage:
    """What runs.

    Args:
        folder: For records; it is there.
        paced: The stream runs at its own speed, not at the pipeline's.

    Attributes:
        failures: Errors that ended a run of a stream, and errors of the server; there should be none.
        alerts, posts, notice_count: Counted so far.
    """

    def __init__(self, folder: Path, paced: bool) -> None:
        self.folder = folder
        self.orders = folder / "orders"
        self.orders.mkdir(exist_ok=True)
        self.failures: list[str] = []
        self.alerts = self.posts = self.notice_count = 0
        self._runs, self._paced = 0, paced

    @contextlib.contextmanager
    def running(self) -> Iterator[Stage]:
        """Everything, until the end of the block."""
        os.environ[ORDERS_VARIABLE] = str(self.orders)
        with contextlib.ExitStack() as stack:
            self.sender = start_sender(free_port(), size_wh=SENDER_SIZE_WH)
            stack.callback(self._kill_sender)
            hook = stack.enter_context(self._hook())
            stop, ready = threading.Event(), threading.Event()
            thread, self.port = self._serve(hook, stop, ready)
            stack.callback(thread.join, _END_SECONDS)
            stack.callback(stop.set)
            if not ready.wait(_START_SECONDS):
                raise RuntimeError("the server did not start")
            self._add_streams()
            stack.callback(self.hub.unsubscribe, self._subscription)
            viewer = Viewer(self.port, self.main.id)
            stack.callback(viewer.close)
            yield self

    def _serve(self, hook: str, stop: threading.Event, ready: threading.Event) -> tuple[threading.Thread, int]:
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        self.hub = EventHub()
        self.observer = Observer(self.hub, lambda: [Webhook(hook)])
        parts = RunnerParts(
            self.hub, WorkerPool(SoakedWorkers), RULES, make_consumers=self._consumers, on_error=self._failed
        )
        # At the pipeline's pace it is always busy: quality would only ever sink.
        settings = Settings().with_values({**_SETTINGS, "live.adapt": self._paced})
        self.streams = LiveStreams(settings, parts=parts)
        access = make_access("127.0.0.1", token=None, port=port)
        self.serving = Serving(self.streams, access, AllowedSources(), self.observer)
        thread = threading.Thread(
            target=run_server,
            args=(self.serving, listener),
            kwargs={"stop": stop, "on_ready": ready.set, "on_error": self._surprised},
            name="soak-server",
        )
        thread.start()
        return thread, port

    def _add_streams(self) -> None:
        self._subscription = Subscription(self._hear, kinds={"alert", "notice"})
        self.hub.subscribe(self._subscription)
        self.feed = Feed(lambda: sum(runner.waiting for runner in self.streams.runners[:1]), paced=self._paced)
        self.progress = {NAME: Progress(self.feed.taken), OTHER: Progress()}
        self.main = self.streams.add(NAME, opener=self.feed.open, name=NAME, query=["red"])
        self.other = self.streams.add(f"{self.sender.address}/live.ts", name=OTHER, query=["green"])
        deadline = time.monotonic() + _START_SECONDS
        while not all(progress.frames > FPS for progress in self.progress.values()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the streams do not run: {[each.status() for each in self.streams.runners]}")
            time.sleep(0.05)

    @property
    def stream_seconds(self) -> float:
        """How much of the main stream has been processed."""
        return self.progress[NAME].frames / FPS

    def _consumers(self, runner: StreamRunner) -> Sequence[Consumer]:
        made = list(self.observer.consumers(runner))
        if runner.name not in self.progress:
            return made
        self._runs += 1
        grid = Grid.for_size((160, 120), max_pixels=runner.settings.grid.max_pixels)
        header = Header.for_grid(
            grid, source=runner.name, query=None, budget_tokens=0, config=public_settings(runner.settings)
        )
        path = self.folder / f"records-{runner.id}-{self._runs}.jsonl"
        return [*made, Records(path, header, True), self.progress[runner.name]]

    def _failed(self, runner: StreamRunner, error: Exception) -> None:
        self.failures.append(f"{runner.name}: {type(error).__name__}: {error}")
        self.observer.failed(runner, error)

    def _surprised(self, error: Exception) -> None:
        self.failures.append(f"server: {type(error).__name__}: {error}")

    def _hear(self) -> None:
        for event in self._subscription.take():
            self.alerts += event["type"] == "alert"
            if event["type"] == "notice":
                self.notice_count += 1

    def _kill_sender(self) -> None:
        """The present one: it may have been started again."""
        self.sender.kill()

    @contextlib.contextmanager
    def _hook(self) -> Iterator[str]:
        """Where alerts are posted to."""
        stage = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                stage.posts += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, name="soak-hook")
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}/"
            finally:
                server.shutdown()
                thread.join()


@contextlib.contextmanager
def staged(folder: Path, *, paced: bool = False) -> Iterator[Stage]:
    """A stage that runs."""
    with Stage(folder, paced).running() as stage:
        yield stage
