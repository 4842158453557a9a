"""Tries inputs of one target, one after the other, as its parent hands them over.

    python -m fuzzing.child TARGET SCRATCH DESCRIPTOR

The descriptor is the end of a pipe. The first message, a JSON list of the seeds (a character a byte), tells that the
process is ready; from then on every message is an input, and is answered with JSON.
"""

from __future__ import annotations

import dis
import faulthandler
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal
from zlib import crc32

from fuzzing.guard import PORT, Guard, Memory, die_with_parent, limit_memory
from fuzzing.target import LONGEST_ERROR, Target, UnfitError, checked_error

Kind = Literal["value", "refused", "exception", "message", "memory", "forbidden", "crash", "hang"]
FINDINGS = ("exception", "message", "memory", "forbidden", "crash", "hang")
_MIB = 1 << 20


@dataclass(slots=True)
class Answer:
    """Outcome of one input.

    Args:
        kind: `value` and `refused` are as they should be, the others are findings.
        outcome: In a few words; of a finding, what tells it from others.
        detail: Of a finding, the traceback or message.
        seconds: How long it took.
        peak_mb: Most memory at once, beyond that before.
        lines: Numbers of lines that ran for the first time in this process.
    """

    kind: Kind
    outcome: str
    detail: str = ""
    seconds: float = 0.0
    peak_mb: float = 0.0
    lines: list[int] = field(default_factory=list)


class Coverage:
    """Lines of some packages that have run, each reported once; functions without new lines run untraced."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._prefixes = tuple(f"{folder}/" for package in packages for folder in _folders(package))
        self._new: list[int] = []
        self._left: dict[CodeType, set[int]] = {}

    def start(self) -> None:
        """Watch this thread."""
        sys.settrace(self._call)

    def take(self) -> list[int]:
        """Return the numbers of the lines that ran for the first time since the last call; equal in every process."""
        taken, self._new = self._new, []
        return taken

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            watched = code.co_filename.startswith(self._prefixes)
            left = {number for _, number in dis.findlinestarts(code) if number} if watched else set()
            self._left[code] = left
        return self._line if left else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        left = self._left[frame.f_code]
        if event == "line" and frame.f_lineno in left:
            left.discard(frame.f_lineno)
            name = "/".join(frame.f_code.co_filename.rsplit("/", 3)[1:])
            self._new.append(crc32(name.encode()) << 16 | frame.f_lineno)
        return self._line


def _folders(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    return list((spec.submodule_search_locations or [str(Path(str(spec.origin)).parent)]) if spec else [])


class Trial:
    """Tries inputs behind the guards.

    Attributes:
        seeds: Of the target.
    """

    def __init__(self, target: Target, scratch: Path) -> None:
        self._target = target
        self._run = target.open(scratch)
        self._memory = Memory()
        self._coverage = Coverage(target.traced)
        self.seeds = target.seeds()
        # What is loaded late, by the first inputs of each kind, is loaded now: before the limits, and unwatched.
        for seed in self.seeds:
            self._answer(seed)
        self._guard = Guard(scratch, target.forbidden)
        limit_memory((target.memory_mb + 512) * _MIB)
        self._coverage.start()

    def attempt(self, data: bytes) -> Answer:
        data = data.replace(b":" + PORT, b":" + self._guard.port)
        self._memory.start()
        began = time.perf_counter()
        faulthandler.dump_traceback_later(self._target.hang_seconds * 0.8, file=sys.stderr)
        answer = self._guarded(data)
        faulthandler.cancel_dump_traceback_later()
        answer.seconds = time.perf_counter() - began
        answer.peak_mb = self._memory.peak_bytes() / _MIB
        answer.lines = self._coverage.take()
        if seen := self._guard.seen():
            answer.kind, answer.outcome, answer.detail = "forbidden", seen[0][:60], "\n".join(seen)
        elif answer.peak_mb > self._target.memory_mb:
            answer.kind, answer.outcome = "memory", f"over {self._target.memory_mb} MiB: {answer.outcome}"
        return answer

    def _guarded(self, data: bytes) -> Answer:
        self._guard.armed = True
        try:
            return self._answer(data)
        finally:
            self._guard.armed = False

    def _answer(self, data: bytes) -> Answer:
        from arr_stream.errors import ArrStreamError

        try:
            return Answer("value", self._run(data))
        except ArrStreamError as exc:
            return _refusal(exc)
        except MemoryError as exc:
            return Answer("memory", _place(exc), traceback.format_exc(limit=-12))
        except Exception as exc:
            if type(exc).__name__ in self._target.refusals:
                return Answer("refused", f"{type(exc).__name__}: {_gist(str(exc))}")
            return Answer("exception", _place(exc), traceback.format_exc(limit=-12)[-4000:])


def _refusal(exc: Exception) -> Answer:
    """An error of the product's own; it must be a line that a terminal and a log can bear."""
    text = str(exc)
    try:
        checked_error(exc)
    except UnfitError as unfit:
        rough = "too long" if len(text) > LONGEST_ERROR else "control characters"
        return Answer("message", f"{_place(exc)} {rough}", str(unfit))
    return Answer("refused", f"{type(exc).__name__}: {_gist(text)}")


def _gist(text: str) -> str:
    """The words of a message without names and numbers, so that the same cause reads the same."""
    kept = "".join(letter if letter.isalpha() or letter in " :;,'" else "" for letter in text.rpartition("/")[2])
    return " ".join(word for word in kept.split() if word.isascii() and len(word) < 20)[:90]


def _place(exc: BaseException) -> str:
    """Kind of the exception, and the innermost place in the product that it came from."""
    frames = traceback.extract_tb(exc.__traceback__)
    ours = [frame for frame in frames if "/arr_stream/" in frame.filename] or list(frames)
    at = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "nowhere"
    return f"{type(exc).__name__} at {at}"


def main() -> None:
    die_with_parent()
    from fuzzing.targets import find_target

    target, scratch, pipe = find_target(sys.argv[1]), Path(sys.argv[2]), Connection(int(sys.argv[3]))
    faulthandler.enable()
    os.chdir(scratch / "elsewhere")
    trial = Trial(target, scratch)
    pipe.send_bytes(json.dumps([seed.decode("latin-1") for seed in trial.seeds]).encode())
    with suppress(EOFError):
        while True:
            pipe.send_bytes(json.dumps(asdict(trial.attempt(pipe.recv_bytes()))).encode())


if __name__ == "__main__":
    main()
