"""Runs Atheris on one target, in this process: `python -m fuzzing.harness TARGET FOLDER [INPUT] [libFuzzer's options]`.

FOLDER is the only place that the target may write to. With INPUT, a file, that input alone is tried. libFuzzer prints
its figures, stops at the first finding, saves the input under `-artifact_prefix`, and exits with a status other than 0.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import atheris

from arr_stream.errors import ArrStreamError
from fuzzing.guard import PORT, Guard
from fuzzing.target import CORPUS, Target, check_error, find_target

LARGEST_BYTES = 1 << 18


class Trial:
    """Tries inputs of a target behind the guard."""

    def __init__(self, target: Target, folder: Path, seeds: Sequence[bytes]) -> None:
        self._target = target
        self._run = target.open(folder)
        # The seeds load what is loaded late; loading reads files and starts threads, which the guard would refuse.
        for seed in seeds:
            self._answer(seed)
        self._guard = Guard(folder, target.forbidden)
        self.most_memory_mb = _peak_mb() + target.memory_mb

    def __call__(self, data: bytes) -> None:
        if not data:
            return
        self._guard.armed = True
        try:
            self._answer(data.replace(b":" + PORT, b":" + self._guard.port))
        finally:
            self._guard.armed = False
        if seen := self._guard.seen():
            raise AssertionError(f"forbidden: {'; '.join(seen)}")
        if (peak_mb := _peak_mb()) > self.most_memory_mb:
            raise AssertionError(f"memory: {peak_mb} MB, over {self.most_memory_mb}")

    def _answer(self, data: bytes) -> None:
        try:
            self._run(data)
        except ArrStreamError as exc:
            check_error(exc)
        except Exception as exc:
            if type(exc).__name__ not in self._target.refusals:
                raise


def _peak_mb() -> int:
    # Not getrusage's, which begins at the parent's.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def _dictionary(name: str, path: Path) -> Path:
    """Write the tokens of a format as a dictionary of libFuzzer's."""
    tokens: list[str] = json.loads((CORPUS / "tokens.json").read_text(encoding="ascii"))[name]
    lines = ('"' + "".join(f"\\x{byte:02x}" for byte in token.encode("latin-1")) + '"\n' for token in tokens if token)
    path.write_text("".join(lines), encoding="ascii")
    return path


def main() -> None:
    target, folder, options = find_target(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    seeds, seed_folder = target.seeds(), folder / "seeds"
    seed_folder.mkdir()
    for index, data in enumerate(seeds):
        (seed_folder / f"{index:03}").write_bytes(data)
    options.append(f"-dict={_dictionary(target.tokens, folder / 'tokens.txt')}")
    os.chdir(folder / "elsewhere")
    with atheris.instrument_imports(include=["arr_stream"]):
        trial = Trial(target, folder, seeds)
    # libFuzzer looks at memory once a second, which ends an input that takes ever more. Its figure begins at the
    # parent's.
    parent_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    options += [f"-rss_limit_mb={max(parent_mb, trial.most_memory_mb) + 512}", f"-max_len={LARGEST_BYTES}"]
    if not any(Path(option).is_file() for option in options):
        options.append(str(seed_folder))
    structure = target.structure

    def mutated(data: bytes, most_bytes: int, seed: int) -> bytes:
        def plain(part: bytes) -> bytes:
            return bytes(atheris.Mutate(part, len(part) + 64))

        rng = random.Random(seed)
        if structure is None or rng.random() < 0.5:
            return bytes(atheris.Mutate(data, most_bytes))
        return structure(rng, data, plain)[:most_bytes]

    atheris.Setup([sys.argv[0], "-len_control=0", *options], trial, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
