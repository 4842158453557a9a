"""The worker process: makes keyframes for a pipeline in another process.

    python -m arr_stream.keyframes.worker_main
        --factory MODULE:FUNCTION --settings JSON --parts A,B --threads N --nice N

Requests come by standard input, replies go by standard output (`wire`). The factory is called once with the settings,
`threads` and the parts, and gives a `KeyframeGenerator`. First reply: `Ready`, or `Refused` with the reason and the
process ends. Then, for each request, one `KeyframePart` or `KeyframeFailure` a part as it is made, and `Done`. It ends
when its standard input closes, in mid-generation too, and pays no heed to Ctrl-C, which is the pipeline's to answer.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError
from arr_stream.keyframes.base import PartName
from arr_stream.keyframes.generate import (
    KeyframeFailure,
    KeyframeGenerator,
    KeyframeRequest,
    make_generator,
    make_part,
)
from arr_stream.processes import receive, send


@dataclass(frozen=True, slots=True)
class Ready:
    """Models are loaded."""


@dataclass(frozen=True, slots=True)
class Done:
    """Every part of the request is made or has failed."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The generator could not be made.

    Args:
        error: Name of the error's class.
        message: What went wrong.
        remedy: What to do about it.
        details: Traceback.
    """

    error: str
    message: str
    remedy: str | None
    details: str


def standard_generator(settings: Mapping[str, Any], threads: int, parts: Sequence[PartName]) -> KeyframeGenerator:
    """The generator for the fields of `Settings`.

    Nobody reads anything here, so what is made when it is read is made at once.
    """
    wanted = Settings.model_validate(settings)
    if wanted.keyframes.clusters == "auto":
        wanted = wanted.with_values({"keyframes.clusters": "slic"})
    return make_generator(wanted, threads, parts)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = _take_pipes()
    _be_modest(options.threads, options.nice)
    try:
        module, _, function = options.factory.partition(":")
        make = getattr(importlib.import_module(module), function)
        generator: KeyframeGenerator = make(json.loads(options.settings), options.threads, options.parts.split(","))
    except Exception as exc:
        message, remedy = (exc.message, exc.remedy) if isinstance(exc, ArrStreamError) else (str(exc), None)
        send(replies, Refused(type(exc).__name__, message, remedy, traceback.format_exc()))
        return 1
    send(replies, Ready())
    inbox: queue.SimpleQueue[KeyframeRequest] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, inbox), daemon=True).start()
    while True:
        _answer(generator, inbox.get(), replies)


def _answer(generator: KeyframeGenerator, request: KeyframeRequest, replies: IO[bytes]) -> None:
    index = request.frame.index
    try:
        for part, job in generator.jobs(request).items():
            send(replies, make_part(index, part, job))
    except Exception as exc:
        failed = KeyframeFailure(
            index, f"generation: {type(exc).__name__}: {exc}", traceback.format_exc(), request.parts
        )
        send(replies, failed)
    send(replies, Done())


def _listen(requests: IO[bytes], inbox: queue.SimpleQueue[KeyframeRequest]) -> None:
    """Hand requests on; end the process, whatever it is doing, once nobody is there to ask."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            inbox.put(receive(requests))
    os._exit(0)


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Standard input and output for ourselves; what a library prints goes to standard error instead."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _be_modest(threads: int, nice: int) -> None:
    """Leave the processor to the frame loop: lower priority, small thread pools."""
    import cv2

    cv2.setNumThreads(threads)
    if hasattr(os, "nice"):
        os.nice(nice)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="arr_stream.keyframes.worker_main")
    parser.add_argument("--factory", required=True)
    parser.add_argument("--settings", default="{}")
    parser.add_argument("--parts", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nice", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # Imported under its real name, so that the messages' classes are the ones that the other end knows.
    from arr_stream.keyframes.worker_main import main as run

    sys.exit(run())
