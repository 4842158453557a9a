"""Everything that runs during a soak: what `arr-stream serve` runs, with sources that can be disturbed."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from arr_stream.config import Settings, public_settings
from arr_stream.consumer import Consumer
from arr_stream.keyframes.sharing import WorkerPool
from arr_stream.live.events import Event, EventHub, Subscription
from arr_stream.live.runner import RunnerParts, StreamRunner
from arr_stream.live.streams import LiveStreams
from arr_stream.patch_set import PatchSet
from arr_stream.records.json_lines import Records
from arr_stream.records.schema import Header
from arr_stream.types import Frame, Grid
from arr_stream.web.access import AllowedSources, make_access
from arr_stream.web.observers import AlertPlan, Observer
from arr_stream.web.server import listen, run_server
from arr_stream.web.serving import Serving
from soaking.clients import Viewer
from soaking.feed import NAME, Feed
from soaking.footage import FPS
from soaking.keyframes import ORDERS_VARIABLE, SoakedWorkers
from soaking.room import SmallRoom, small_room

OTHER = "http"
RULES = ("keyframe = 1", "motion > 0.01 for 1s")
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


@dataclass(frozen=True, slots=True)
class StagePlan:
    """How a stage is set up.

    Args:
        folder: For records and clips; it is there.
        paced: The stream runs at its own speed, not at the pipeline's.
    """

    folder: Path
    paced: bool = False

    @property
    def settings(self) -> Settings:
        # At the pipeline's pace it is always busy: quality would only ever sink.
        return Settings().with_values({**_SETTINGS, "live.adapt": self.paced})


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


class Sender:
    """The HTTP server of the second stream."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/live.ts"

    def start(self) -> None:
        """Start it, on the same port as before."""
        command = [sys.executable, "-m", "soaking.sender", "--port", str(self.port)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        said = process.stdout.readline().split()
        if not said:
            process.wait()
            raise RuntimeError("the sender did not start")
        self.port, self._process = int(said[1]), process

    def kill(self) -> None:
        """End it at once, as a crash does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


class Stage:
    """What runs.

    Attributes:
        failures: Errors that ended a run of a stream, and errors of the server; there should be none.
        alerts, posts, notice_count, clip_failures: Counted so far.
    """

    def __init__(self, plan: StagePlan, room: SmallRoom | None) -> None:
        self.plan, self.room = plan, room
        self.clip_folder = room.folder if room is not None else plan.folder / "clips"
        self.orders = plan.folder / "orders"
        self.orders.mkdir(exist_ok=True)
        self.failures: list[str] = []
        self.alerts = self.posts = self.notice_count = self.clip_failures = 0
        self._runs = 0

    def run(self) -> contextlib.AbstractContextManager[Stage]:
        """Everything, until the end of the block."""
        return self._running()

    @contextlib.contextmanager
    def _running(self) -> Iterator[Stage]:
        os.environ[ORDERS_VARIABLE] = str(self.orders)
        with contextlib.ExitStack() as stack:
            self.sender = Sender()
            stack.callback(self.sender.kill)
            hook = stack.enter_context(self._hook())
            stop, ready = threading.Event(), threading.Event()
            thread, port = self._serve(hook, stop, ready)
            stack.callback(thread.join, _END_SECONDS)
            stack.callback(stop.set)
            if not ready.wait(_START_SECONDS):
                raise RuntimeError("the server did not start")
            self._add_streams()
            stack.callback(self.hub.unsubscribe, self._subscription)
            self.port = port
            viewer = Viewer(port, self.main.id)
            stack.callback(viewer.close)
            yield self

    def _serve(self, hook: str, stop: threading.Event, ready: threading.Event) -> tuple[threading.Thread, int]:
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        self.hub = EventHub()
        rules = AlertPlan(RULES, 1.5, 1.0, self.clip_folder, ("true",), (hook,))
        self.observer = Observer(self.hub, rules)
        parts = RunnerParts(self.hub, WorkerPool(SoakedWorkers), make_consumers=self._consumers, on_error=self._failed)
        self.streams = LiveStreams(self.plan.settings, parts=parts)
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
        self.feed = Feed(lambda: sum(runner.waiting for runner in self.streams.runners[:1]), paced=self.plan.paced)
        self.progress = {NAME: Progress(self.feed.taken), OTHER: Progress()}
        self.main = self.streams.add(NAME, opener=self.feed.open, name=NAME, query=["red"])
        self.other = self.streams.add(self.sender.address, name=OTHER, query=["green"])
        self.wait_for_frames()

    def wait_for_frames(self) -> None:
        """Wait until both streams run.

        Raises:
            RuntimeError: They do not.
        """
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
        path = self.plan.folder / f"records-{runner.id}-{self._runs}.jsonl"
        return [*made, Records(path, header, True), self.progress[runner.name]]

    def _failed(self, runner: StreamRunner, error: Exception) -> None:
        self.failures.append(f"{runner.name}: {type(error).__name__}: {error}")
        self.observer.failed(runner, error)

    def _surprised(self, error: Exception) -> None:
        self.failures.append(f"server: {type(error).__name__}: {error}")

    def _hear(self) -> None:
        for event in self._subscription.take():
            self._note(event)

    def _note(self, event: Event) -> None:
        if event["type"] == "alert":
            self.alerts += 1
        elif event["type"] == "notice":
            self.notice_count += 1
            self.clip_failures += event["text"].startswith("clip not recorded")

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
def staged(plan: StagePlan) -> Iterator[Stage]:
    """A stage that runs, with clips in a room of their own where the system gives one."""
    with small_room(plan.folder / "clips") as room, Stage(plan, room).run() as stage:
        yield stage
