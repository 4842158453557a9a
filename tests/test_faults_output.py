"""Outputs that cannot be written: full, read-only or vanishing disks, pipes that nobody reads, consumers that hang."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import arr_stream
from arr_stream.config import Settings
from arr_stream.consumer import BackgroundConsumer, Outcome
from arr_stream.errors import ConsumerFailed, DiskFull, OutputUnwritable
from arr_stream.files import LineFile
from arr_stream.outputs import records_of
from arr_stream.patch_set import PatchSet
from arr_stream.records.json_lines import read_records
from arr_stream.run import run as run_stream
from arr_stream.types import Frame
from tests.fault_helpers import QUICK, clip, decoded, ended, finished, lines, running, small_disk, until

FRAMES = 400
ENDS_SECONDS = 30.0
"""How long a process may take to end after Ctrl-C on a machine with much else to do; an idle one needs a few."""

SETTINGS = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid", "selection.budget": "6"})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip(tmp_path_factory.mktemp("output") / "clip.mp4", FRAMES)


def _arguments(source: Path, folder: Path, *what: str) -> list[object]:
    paths: dict[str, object] = {
        "-o": folder / "out.mp4",
        "--patches": folder / "out.jsonl",
        "--report": folder / "report",
    }
    written = [each for option in what or paths for each in (option, paths[option])]
    return ["process", source, *written, *QUICK]


def _check_what_is_left(folder: Path) -> None:
    """What was written is valid, and nothing temporary is left."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert not [name for name in names if "partial" in name], names
    if "out.jsonl" in names and lines(folder / "out.jsonl"):
        text = (folder / "out.jsonl").read_bytes()
        assert text.endswith(b"\n")
        _, frames, end = read_records(folder / "out.jsonl")
        assert [frame.index for frame in frames] == list(range(len(frames)))
        assert end is None or (end.reason, end.frames) == ("failed", len(frames))
    if "out.mp4" in names:
        assert decoded(folder / "out.mp4")
    for name in names:
        if name.endswith(".png"):
            assert (folder / name).read_bytes().endswith(b"IEND\xaeB`\x82")


@pytest.mark.parametrize(
    ("kilobytes", "what"),
    [
        (100, ()),
        pytest.param(8, ("--patches",), marks=pytest.mark.slow),
        pytest.param(60, ("--patches",), marks=pytest.mark.slow),
        pytest.param(60, ("-o",), marks=pytest.mark.slow),
        pytest.param(4, ("-o",), marks=pytest.mark.slow),
        pytest.param(12, ("--report",), marks=pytest.mark.slow),
        pytest.param(300, (), marks=pytest.mark.slow),
        pytest.param(600, (), marks=pytest.mark.slow),
    ],
)
def test_a_full_disk(source: Path, tmp_path: Path, kilobytes: int, what: tuple[str, ...]) -> None:
    with small_disk(tmp_path / "disk", kilobytes) as disk:
        result = finished(_arguments(source, disk.path, *what), within=disk.within)
        assert result.code == DiskFull.exit_code, result
        assert "no space left" in result.last_line
        _check_what_is_left(disk.seen)


@pytest.mark.slow
def test_a_read_only_disk_is_told_before_any_work(source: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1000) as disk:
        disk.remount("ro")
        for what in ("-o", "--patches", "--report"):
            result = finished(_arguments(source, disk.path, what), within=disk.within)
            assert result.code == OutputUnwritable.exit_code, result
            assert result.err.count("\n") == 1 and "cannot be written to" in result.err
        assert not list(disk.seen.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["-o", "--patches"])
def test_a_folder_that_is_removed_in_mid_run(source: Path, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "out"
    with running(_arguments(source, folder, what)) as process:
        until(lambda: folder.exists() and any(path.stat().st_size > 8000 for path in folder.iterdir()), process)
        shutil.rmtree(folder)
        result = ended(process)
    assert result.code == OutputUnwritable.exit_code, result
    assert "out/out." in result.last_line
    assert not folder.exists()


@pytest.mark.slow
def test_a_pipe_whose_reader_stops_reading(source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.jsonl")
    with running(_arguments(source, tmp_path)) as process, (tmp_path / "out.jsonl").open("rb") as reader:
        read = reader.read(20_000)
        grown = _settled_size(tmp_path / "out.partial.mp4")
        assert process.poll() is None
        resident = _resident_bytes(process.pid)
        time.sleep(1.0)
        # It waits: nothing more is written, and nothing more is held.
        assert (tmp_path / "out.partial.mp4").stat().st_size == grown
        assert _resident_bytes(process.pid) < resident + (8 << 20)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        result = ended(process, ENDS_SECONDS)
        read += reader.read()
    assert result.code == 130, result
    assert len(decoded(tmp_path / "out.mp4")) >= read.count(b"\n") - 1


def _settled_size(path: Path) -> int:
    """Size of a file once it has not grown for two seconds."""
    sizes = [-1]
    until(path.exists)
    while len(sizes) < 5 or len(set(sizes[-5:])) > 1:
        sizes.append(path.stat().st_size)
        time.sleep(0.5)
    return sizes[-1]


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_one_line(source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.jsonl")
    with running(_arguments(source, tmp_path)) as process:
        with (tmp_path / "out.jsonl").open("rb") as reader:
            reader.read(5000)
        result = ended(process)
    assert result.code == OutputUnwritable.exit_code, result
    assert "broken pipe" in result.last_line
    assert decoded(tmp_path / "out.mp4")


class Hanging:
    """Takes some frames, then hangs until it is let go; `then` is done when it has hung for a while."""

    def __init__(self, after: int, then: Callable[[Hanging], object] = lambda _: None) -> None:
        self.let_go = threading.Event()
        self.taken: list[int] = []
        self._after = after
        self._timer = threading.Timer(0.5, then, [self])

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        if len(self.taken) == self._after:
            self._timer.start()
            self.let_go.wait()
        self.taken.append(patches.index)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("after", [3, FRAMES - 1])
def test_a_consumer_that_hangs_is_given_up_when_told_to_end(source: Path, tmp_path: Path, after: int) -> None:
    stop, ahead = threading.Event(), list[int]()
    hanging = Hanging(after, lambda _: stop.set())
    try:
        stream = arr_stream.open(source, settings=SETTINGS)
        result = run_stream(
            stream,
            [BackgroundConsumer(hanging), records_of(stream, tmp_path / "out.jsonl")],
            on_frame=lambda patches: ahead.append(patches.index - len(hanging.taken)),
            stop=stop,
        )
    finally:
        hanging.let_go.set()
    assert isinstance(result.error, ConsumerFailed) and "Hanging" in str(result.error)
    assert max(ahead) <= 5
    _, frames, end = read_records(tmp_path / "out.jsonl")
    assert end is not None and end.frames == len(frames) == result.frames


def test_records_tell_that_what_was_closed_before_them_failed(source: Path, tmp_path: Path) -> None:
    class Full(Hanging):
        def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
            raise DiskFull("out.mp4: no space left on device")

    stream = arr_stream.open(source, settings=SETTINGS, max_frames=4)
    result = run_stream(stream, [Full(99), records_of(stream, tmp_path / "out.jsonl")])
    assert isinstance(result.error, DiskFull)
    end = read_records(tmp_path / "out.jsonl")[2]
    assert end is not None and end.reason == "failed" and "no space left" in (end.error or "")


def test_lines_are_whole_after_a_pipe_was_full(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []

    def read_late() -> None:
        time.sleep(0.2)
        got.append((tmp_path / "pipe").read_bytes())

    reader = threading.Thread(target=read_late)
    reader.start()
    file = LineFile(tmp_path / "pipe", force=False)
    sent = [bytes([65 + index]) * 50_000 + b"\n" for index in range(8)]
    for line in sent:
        file.write(line)
    file.close()
    file.close()
    reader.join()
    assert got[0] == b"".join(sent)


def test_a_file_that_is_removed_while_it_is_written_is_told(tmp_path: Path) -> None:
    kept, lost = LineFile(tmp_path / "a", force=False), LineFile(tmp_path / "b", force=False)
    for file in (kept, lost):
        file.write(b"line\n")
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    (tmp_path / "b").unlink()
    kept.close()
    with pytest.raises(OutputUnwritable, match="removed"):
        lost.close()
