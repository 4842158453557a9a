"""The server of a measurement: the page with streams whose pictures tell when they were taken.

python -m benchmarks.live.server --port N --captures FOLDER [--counter FPS]... [--source SPEC]... [--set K=V]...
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from arr_stream.cli.running import stop_on_signals
from arr_stream.config import Settings
from arr_stream.live.publishing import EventHub
from arr_stream.live.registry import LiveStreams
from arr_stream.live.runner import RunnerParts
from arr_stream.web.access import AllowedSources, make_access
from arr_stream.web.server import listen, run_server
from arr_stream.web.serving import Serving
from benchmarks.live.process import end_with_parent
from benchmarks.live.scene import CounterSource, Scene

if TYPE_CHECKING:
    from arr_stream.live.runner import Opener

HOST = "127.0.0.1"


def _opener(fps: float, number: int, folder: Path) -> Opener:
    captures = (folder / f"captures-{number}.txt").open("w", buffering=1)
    scene = Scene((640, 360), seed=number)

    def on_capture(index: int, captured_unix: float) -> None:
        captures.write(f"{index} {captured_unix:.6f}\n")

    return lambda settings, on_state, interrupt: CounterSource(scene, fps, on_capture)


def _fill(streams: LiveStreams, given: argparse.Namespace) -> None:
    for number, fps in enumerate(given.counter):
        name = f"counter {number + 1}"
        streams.add(name, opener=_opener(fps, number, given.captures), name=name)
    for source in given.source:
        streams.add(source)


def main() -> None:
    """Serve as `arr-stream serve` does, with other sources."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--captures", type=Path, required=True)
    parser.add_argument("--counter", type=float, action="append", default=[])
    parser.add_argument("--source", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    given = parser.parse_args()
    end_with_parent()
    hub = EventHub()
    streams = LiveStreams(Settings.load(None, given.overrides), parts=RunnerParts(hub))
    access = make_access(HOST, token=None, port=given.port)
    serving = Serving(streams, access, AllowedSources(tuple(given.source)))
    listener = listen(HOST, given.port)
    with stop_on_signals() as stop:
        _fill(streams, given)
        run_server(serving, listener, stop=stop, on_ready=lambda: None, on_error=_tell)


def _tell(error: Exception) -> None:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
