"""Tries inputs of one target, one after the other, as its parent hands them over.

    python -m fuzzing.child TARGET SCRATCH

Both ways a message is a length (uint32) and that many bytes: inputs come on standard input, answers go to standard
output as JSON. The first answer, before any input, tells that the process is ready; an input of no bytes asks for the
seeds, which come as one message each.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import struct
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from fuzzing.coverage import Coverage
from fuzzing.guard import PORT, Guard, Memory, die_with_parent, limit_memory, more_memory
from fuzzing.target import LONGEST_ERROR, Run, Target, UnfitError, checked_error

Kind = Literal["value", "refused", "exception", "message", "memory", "forbidden", "crash", "hang"]
FINDINGS = ("exception", "message", "memory", "forbidden", "crash", "hang")
_MIB = 1 << 20
_NO_MEMORY = "annot allocate memory"
_EXTRA_BYTES = 4 << 30


@dataclass(slots=True)
class Answer:
    """What came of one input.

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


def find_target(spec: str) -> Target:
    """A target by its name, or `FILE.py:NAME` for one that stands elsewhere."""
    file, colon, name = spec.rpartition(":")
    if not colon:
        from fuzzing.targets import TARGETS

        return TARGETS[spec]
    module_spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    module_spec.loader.exec_module(module)
    found: Target = getattr(module, name)
    return found


class Trial:
    """Tries inputs behind the guards."""

    def __init__(self, target: Target, scratch: Path) -> None:
        self._target = target
        self._run: Run = target.open(scratch)
        self._memory = Memory()
        self._coverage = Coverage([folder for name in target.traced for folder in _folders(name)])
        # What is loaded late, by the first inputs of each kind, is loaded now: before the limits, and unwatched.
        for seed in target.seeds():
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
        """Tried once; again with more memory where a library said that it lacks some.

        FFmpeg says so too of lengths that it thinks absurd, and then wanted none: that is a refusal like others.
        """
        self._guard.armed = True
        try:
            answer = self._answer(data)
            if _NO_MEMORY not in answer.outcome or answer.kind != "refused":
                return answer
            with more_memory(_EXTRA_BYTES):
                again = self._answer(data)
            if again.outcome != answer.outcome:
                return Answer(
                    "memory", f"more than {self._target.memory_mb} MiB wanted: {again.outcome}", answer.detail
                )
            return answer
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


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(str(spec.origin)).parent]


def receive(pipe: IO[bytes]) -> bytes | None:
    """One message; None at the end."""
    head = pipe.read(4)
    if len(head) < 4:
        return None
    return pipe.read(struct.unpack("<I", head)[0])


def send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(struct.pack("<I", len(message)) + message)
    pipe.flush()


def main() -> None:
    die_with_parent()
    target, scratch = find_target(sys.argv[1]), Path(sys.argv[2])
    inputs = sys.stdin.buffer
    # What prints goes nowhere: this pipe is for answers.
    answers = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    faulthandler.enable()
    os.chdir(scratch / "elsewhere")
    trial = Trial(target, scratch)
    send(answers, b"ready")
    while (data := receive(inputs)) is not None:
        if not data:
            seeds = target.seeds()
            send(answers, struct.pack("<I", len(seeds)))
            for seed in seeds:
                send(answers, seed)
            continue
        send(answers, json.dumps(_plain(trial.attempt(data))).encode("ascii"))


def _plain(answer: Answer) -> dict[str, Any]:
    return asdict(answer)


if __name__ == "__main__":
    main()
