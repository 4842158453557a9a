"""The fuzzer finds what is planted, and the readers handle its seeds."""

from __future__ import annotations

import random
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("atheris")
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from fuzzing.__main__ import main, run_target  # noqa: E402
from fuzzing.structure import json_line, json_value, png_chunk, safetensors_header, zip_member  # noqa: E402
from fuzzing.target import all_targets, check_error  # noqa: E402

from arr_stream.errors import ArrStreamError  # noqa: E402

TARGETS = all_targets()

PLANTED = textwrap.dedent(
    '''
    """Readers with a fault each, chosen by the first byte."""

    import ctypes, os, socket, subprocess
    from pathlib import Path

    from arr_stream.errors import EmptyQuery
    from fuzzing.target import Target

    def opened(scratch):
        elsewhere = scratch.parent / f"{scratch.name}-elsewhere"

        def run(data):
            match data[:1]:
                case b"v":
                    (scratch / "own").write_bytes(data)
                    (scratch / "own").unlink()
                    return "value"
                case b"r":
                    raise EmptyQuery("nothing is asked")
                case b"e":
                    return {}["missing"]
                case b"c":
                    ctypes.string_at(0)
                case b"x":
                    os._exit(3)
                case b"h":
                    while True:
                        pass
                case b"w":
                    elsewhere.write_bytes(data)
                case b"d":
                    Path("../../left").mkdir()
                case b"m":
                    return str(len(bytes(range(256)) * (1 << 19)))
                case b"M":
                    return str(len(bytearray(1 << 40)))
                case b"n":
                    socket.create_connection(("127.0.0.1", int(data[1:].partition(b":")[2])))
                case b"s":
                    libc, place = ctypes.CDLL(None), str(scratch / "canary.mp4").encode()
                    libc.close(libc.open(place, os.O_RDONLY))
                case b"p":
                    subprocess.run(["true"])
                case b"l":
                    error = EmptyQuery("long")
                    error.args = ("x" * 600,)
                    raise error
                case b"k":
                    error = EmptyQuery("odd")
                    error.args = ("a\\x1b[31m b",)
                    raise error
            return "other"

        return run

    EVERYTHING = Target("planted", "faults", lambda: [b"v", b"r"], opened, memory_mb=40)

    def deep(scratch):
        def run(data):
            if len(data) > 3:
                if data[0] > 200:
                    if data[1] < 16:
                        if data[2] % 4 == 3:
                            raise ZeroDivisionError("found")
            return "value"
        return run

    DEEP = Target("deep", "a fault behind three conditions", lambda: [b"AAAA"], deep)
    '''
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted") / "planted.py"
    path.write_text(PLANTED, encoding="utf-8")
    return path


@pytest.mark.slow
def test_every_kind_of_fault_is_found_and_nothing_is_done_elsewhere(planted: Path, tmp_path: Path) -> None:
    wanted = {
        b"v": "", b"r": "", b"o": "", b"e": "KeyError", b"w": "for writing", b"d": "os.mkdir", b"m": "memory: ",
        b"M": "MemoryError", b"n:00000": "socket.", b"s": "canary.mp4", b"p": "subprocess.Popen",
        b"l": "600 characters", b"k": "U+001B", b"c": "deadly signal", b"x": "", b"h": "timeout",
    }  # fmt: skip
    for data, output in wanted.items():
        path = tmp_path / "input"
        path.write_bytes(data)
        outcome = run_target(f"{planted}:EVERYTHING", path, findings=tmp_path)
        assert bool(outcome.status) is (data not in (b"v", b"r", b"o")), (data, outcome)
        assert output in outcome.output, (data, outcome.output)


def test_a_fault_behind_conditions_is_reached(
    planted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--target", f"{planted}:DEEP", "--inputs", "200000", "--findings", str(tmp_path)]
    assert main(asked) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    (found,) = tmp_path.iterdir()
    assert main([*asked, "--reproduce", str(found)]) == 1


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=300), st.integers(0, 2**32))
def test_structured_mutations_take_any_bytes_and_depend_on_nothing_but_the_seed(data: bytes, seed: int) -> None:
    for mutation in (json_line, json_value, png_chunk, safetensors_header, zip_member):
        once, again = (mutation(random.Random(seed), data, lambda part: part + b"x") for _ in range(2))
        assert once == again


def test_files_that_refer_to_others_open_none_of_them(tmp_path: Path) -> None:
    assert len(TARGETS["references"].seeds()) >= 25
    outcome = run_target("references", "-runs=0", findings=tmp_path)
    assert outcome.status == 0, outcome.output


@pytest.mark.parametrize("name", [name for name in TARGETS if name[:5] != "video"])
def test_every_target_still_fits_the_reader_that_it_tries(name: str, tmp_path: Path) -> None:
    for extra in ("fastapi", "prometheus_client", "safetensors"):
        pytest.importorskip(extra)
    target = TARGETS[name]
    run, said = target.open(tmp_path), []
    for seed in target.seeds()[:8]:
        try:
            said.append(run(seed))
        except ArrStreamError as exc:
            check_error(exc)
    assert said or name == "references"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_longer_look_at_each_reader_finds_nothing(name: str, tmp_path: Path) -> None:
    outcome = run_target(name, "-runs=300", "-seed=11", findings=tmp_path)
    assert outcome.status == 0, outcome.output
    assert outcome.inputs >= 300
