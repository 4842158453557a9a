"""The fuzzer finds what is planted, keeps what is new, and finds nothing in the readers at a first glance."""

from __future__ import annotations

import random
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from fuzzing.campaign import Campaign  # noqa: E402
from fuzzing.mutate import LARGEST_BYTES, PLAIN, TEXT, apply, boxes, json_line, json_value, png_sums  # noqa: E402
from fuzzing.runner import Runner  # noqa: E402
from fuzzing.target import checked_error  # noqa: E402
from fuzzing.targets import TARGETS  # noqa: E402
from fuzzing.weight_targets import safetensors_header, zipped_entry  # noqa: E402

from arr_stream.errors import ArrStreamError  # noqa: E402

EVERY_MUTATION = (*PLAIN, *TEXT, boxes, json_line, json_value, png_sums, safetensors_header, zipped_entry)

PLANTED = textwrap.dedent(
    '''
    """Readers with a fault each, chosen by the first byte."""

    import ctypes, os, socket, subprocess, time
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
                    time.sleep(60)
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

    EVERYTHING = Target("planted", "faults", lambda: [b"v", b"r"], opened, hang_seconds=4.0, memory_mb=40)

    def deep(scratch):
        def run(data):
            if len(data) > 3:
                if data[0] > 200:
                    if data[1] < 16:
                        if data[2] % 4 == 3:
                            raise ZeroDivisionError("found")
            return "value"
        return run

    DEEP = Target("deep", "a fault behind three conditions", lambda: [b"AAAA"], deep, traced=("planted",))
    '''
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted") / "planted.py"
    path.write_text(PLANTED, encoding="utf-8")
    return path


@pytest.mark.slow
def test_every_kind_of_fault_is_seen_and_nothing_is_done_elsewhere(planted: Path) -> None:
    spec = f"{planted}:EVERYTHING"
    wanted = {
        b"v": "value", b"r": "refused", b"o": "value", b"e": "exception", b"w": "forbidden", b"d": "forbidden",
        b"m": "memory", b"M": "memory", b"n:00000": "forbidden", b"s": "forbidden", b"p": "forbidden", b"l": "message",
        b"k": "message", b"c": "crash", b"x": "crash", b"h": "hang", b"v again": "value",
    }  # fmt: skip
    with Runner(spec) as runner:
        scratch = runner.scratch
        answers = {data: runner.attempt(data) for data in wanted}
        assert runner.starts == 4  # It was ended three times.
        assert not scratch.with_name(f"{scratch.name}-elsewhere").exists()
        assert not (scratch.parent / "left").exists()
    assert {data: answer.kind for data, answer in answers.items()} == wanted
    assert "KeyError" in answers[b"e"].detail
    assert "SIGSEGV" in answers[b"c"].outcome
    assert "exit code 3" in answers[b"x"].outcome
    assert "canary.mp4" in answers[b"s"].detail
    assert answers[b"m"].peak_mb > 100
    assert not scratch.exists()


def test_a_fault_behind_conditions_is_reached_by_what_ran_and_made_small(planted: Path) -> None:
    spec = f"{planted}:DEEP"
    campaign = Campaign(spec, seed=1)
    report = campaign.run(1000)
    (finding,) = report.findings.values()
    assert finding.kind == "exception" and "ZeroDivisionError" in finding.outcome
    assert len(finding.data) == 4 and finding.data[0] > 200
    assert report.lines > report.seed_lines and report.kept >= 2
    first, second = (Campaign(spec, seed=1).run(60) for _ in range(2))
    assert first.outcomes == second.outcomes


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=300), st.integers(0, 2**32))
def test_mutations_take_any_bytes_and_depend_on_nothing_but_the_seed(data: bytes, seed: int) -> None:
    once = apply(random.Random(seed), data, EVERY_MUTATION, [data, b"other"])
    assert once == apply(random.Random(seed), data, EVERY_MUTATION, [data, b"other"])
    assert 0 < len(once) <= LARGEST_BYTES


def test_files_that_refer_to_others_open_none_of_them() -> None:
    with Runner("references") as runner:
        answers = [(seed, runner.attempt(seed)) for seed in runner.start()]
    assert len(answers) >= 25
    for seed, answer in answers:
        assert answer.kind in ("value", "refused"), (seed, answer)
        # Only films that hold a picture of their own are shown, whatever else they refer to.
        assert answer.kind == "refused" or b"moov" in seed
    assert sum(answer.kind == "refused" for _, answer in answers) >= 23


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
            checked_error(exc)
    assert said or name == "references"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_longer_look_at_each_reader_finds_nothing(name: str) -> None:
    inputs = 60 if name == "requests" else 200
    report = Campaign(name, seed=11).run(inputs)
    assert not report.findings, [(found.kind, found.outcome, found.detail) for found in report.findings.values()]
    assert report.inputs >= inputs
