"""A decoding process that was taken over reaches nothing, harms nobody, and ends as promised."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil
import pytest

from arr_stream.config import SandboxSettings
from arr_stream.errors import BackendUnavailable, InvalidSetting, SandboxViolated, SourceDamaged
from arr_stream.sources import open_source
from arr_stream.sources.base import Job
from arr_stream.sources.sandbox.decoder import probe
from arr_stream.sources.sandbox.lockdown import Layers, program
from arr_stream.sources.sandbox.source import SandboxedSource
from tests.media import moving_frames, write_images, write_video
from tests.sandbox_hostile import FRAMES_BEFORE, SIZE_WH

pytestmark = pytest.mark.skipif(not hasattr(socket, "send_fds"), reason="the sandbox needs Linux or macOS")


def slow_but(quick: int, actions: Iterable[str]) -> list[object]:
    """Parameters of which all but the first few are slow."""
    return [pytest.param(each, marks=[pytest.mark.slow] if at >= quick else []) for at, each in enumerate(actions)]


HOSTILE, WITHOUT_SECCOMP = "tests.sandbox_hostile", "tests.sandbox_without_seccomp"


@pytest.fixture(scope="module")
def layers() -> Layers:
    return probe()


def act(
    folder: Path, action: str, *, module: str = HOSTILE, settings: SandboxSettings | None = None
) -> tuple[int, SourceDamaged | None]:
    """Frames that arrive from a process that does something after two of them, and the error that ends them."""
    path = folder / "action"
    path.write_text(action)
    taken = 0
    try:
        job = Job([path], "a", pictures=True, max_pixels=1000)
        with SandboxedSource(job, settings or SandboxSettings(), module) as source:
            for frame in source.frames():
                taken += 1
                assert frame.size_wh == SIZE_WH
                assert (frame.rgb == taken).all()
    except SourceDamaged as exc:
        return taken, exc
    return taken, None


def test_a_process_that_does_nothing_wrong_ends_well(tmp_path: Path) -> None:
    assert act(tmp_path, "thread") == (FRAMES_BEFORE, None)


REFUSED = {
    "read /etc/passwd": "PermissionError",
    "list /": "PermissionError",
    "write {folder}/new": "PermissionError",
    "run-code": "PermissionError",
}


@pytest.mark.parametrize("action", slow_but(2, REFUSED))
def test_files_are_closed_to_it(tmp_path: Path, layers: Layers, action: str) -> None:
    if not (layers.seccomp and layers.landlock):
        pytest.skip(f"this system gives no {', no '.join(layers.missing)}")
    taken, error = act(tmp_path, action.format(folder=tmp_path))
    assert taken == FRAMES_BEFORE
    assert isinstance(error, SandboxViolated)
    assert error.frames_read == FRAMES_BEFORE
    assert re.search(rf"tried what the sandbox forbids \({REFUSED[action]}.* after 2 frames were read", str(error))
    assert "root:" not in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["action"]


@pytest.mark.parametrize(
    "action",
    slow_but(4, ["connect {port}", "fork", "exec /bin/true", "own-a-signal", "signal-parent", "read-memory"]),
)
def test_what_no_decoder_does_ends_it(tmp_path: Path, layers: Layers, action: str) -> None:
    if not layers.seccomp:
        pytest.skip("this system gives no seccomp")
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken, error = act(tmp_path, action.format(port=server.getsockname()[1]))
        assert taken == FRAMES_BEFORE
        assert isinstance(error, SandboxViolated)
        assert "tried a forbidden system call after 2 frames were read" in str(error)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    "action", slow_but(2, ["read /etc/passwd", "connect {port}", "write {folder}/new", "signal-parent"])
)
def test_the_other_layers_hold_without_seccomp(tmp_path: Path, layers: Layers, action: str) -> None:
    if layers.landlock < 6 or not layers.network:
        pytest.skip("this system gives no network namespace or an old Landlock")
    with socket.create_server(("127.0.0.1", 0)) as server:
        action = action.format(folder=tmp_path, port=server.getsockname()[1])
        taken, error = act(tmp_path, action, module=WITHOUT_SECCOMP)
        assert taken == FRAMES_BEFORE
        assert isinstance(error, SandboxViolated)
        assert re.search(r"\((PermissionError|OSError): \[Errno \d+\]", str(error)), error
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert [path.name for path in tmp_path.iterdir()] == ["action"]


LIMITS = {
    "segv": (SandboxSettings(), r"the decoder crashed \(SIGSEGV\) after 2 frames"),
    "allocate": (SandboxSettings(), "more than the 4096 MB of sandbox.memory_mb, after 2 frames"),
    "spin": (SandboxSettings(stall_seconds=1.0), "no frame came within 1 s, after 2 frames"),
    "opening-spin": (SandboxSettings(open_cpu_seconds=1), "more than 1 s of processor time on opening"),
    "sleep": (SandboxSettings(stall_seconds=1.0), "no frame came within 1 s, after 2 frames"),
    "opening-sleep": (SandboxSettings(stall_seconds=1.0), "no frame came within 1 s, on opening"),
    "abort": (SandboxSettings(), r"the decoder crashed \(SIGABRT\) after 2 frames"),
    "exit": (SandboxSettings(), "the decoder ended by itself, with no word, after 2 frames"),
    "raise": (SandboxSettings(), r"the decoder failed \(KeyError: 'missing'\) after 2 frames"),
}


@pytest.mark.parametrize("action", slow_but(4, LIMITS))
def test_limits_and_crashes_keep_what_came_before(tmp_path: Path, action: str) -> None:
    settings, message = LIMITS[action]
    taken, error = act(tmp_path, action, settings=settings)
    assert isinstance(error, SandboxViolated)
    assert taken == error.frames_read == (0 if action.startswith("opening-") else FRAMES_BEFORE)
    assert re.search(message, str(error)), error
    assert error.exit_code == 19


LIES = ("too-large", "beyond-slot", "no-slot", "odd-slot", "out-of-order", "backwards", "not-a-time", "no-counters")
LIES += ("other-file", "no-file", "unknown-kind", "unknown-error", "own-module")
LIES += ("long", "raw")


@pytest.mark.parametrize("action", slow_but(2, LIES))
def test_lies_are_noticed(tmp_path: Path, action: str) -> None:
    taken, error = act(tmp_path, action)
    assert taken == FRAMES_BEFORE
    assert isinstance(error, SandboxViolated)
    assert "the decoder broke the protocol after 2 frames were read" in str(error)


def test_shared_memory_cannot_be_pulled_away(tmp_path: Path) -> None:
    assert act(tmp_path, "shrink", module=WITHOUT_SECCOMP) == (FRAMES_BEFORE, None)


def test_messages_cannot_control_a_terminal(tmp_path: Path) -> None:
    taken, error = act(tmp_path, "colour")
    assert taken == FRAMES_BEFORE
    assert type(error) is SourceDamaged
    assert str(error) == r"a: \x1b[31mred and a new line; \x07bell"


def test_the_filter_knows_both_machines() -> None:
    for machine in ("x86_64", "aarch64"):
        code = program(machine, 1)
        # A jump that would leave the program would let every call through, or none.
        assert all(at + 1 + max(then, otherwise) < len(code) for at, (_, then, otherwise, _) in enumerate(code[:-1]))


def test_a_missing_layer_is_told_or_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "action"
    path.write_text("thread")
    with SandboxedSource(Job([path], "a", pictures=True), SandboxSettings(), WITHOUT_SECCOMP) as source:
        assert "seccomp" in source.layers.missing
        assert source.notices[0].startswith("sandbox: this system gives no ")
    with pytest.raises(BackendUnavailable, match=r"sandbox\.strict: this system gives no .*seccomp"):
        SandboxedSource(Job([path], "a", pictures=True), SandboxSettings(strict=True), WITHOUT_SECCOMP)


def test_a_process_that_does_not_start_says_why(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", moving_frames(2))
    with pytest.raises(BackendUnavailable, match=r"No module named tests\.nothing_of_this_name"):
        SandboxedSource(Job([path], "a"), SandboxSettings(), "tests.nothing_of_this_name")


def test_hardware_is_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", moving_frames(2))
    with pytest.raises(InvalidSetting, match="reaches no device"):
        open_source(path, hardware="cuda", sandbox=SandboxSettings())


def decoder() -> int:
    """The decoding process of this one, which waits for frames to be taken."""
    (child,) = psutil.Process().children()
    assert any("sandbox.child" in part for part in child.cmdline())
    return child.pid


def test_the_environment_is_not_handed_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARR_STREAM_TEST_SECRET", "hunter2")
    path = write_video(tmp_path / "a.mp4", moving_frames(8))
    with open_source(path, sandbox=SandboxSettings()):
        given = Path(f"/proc/{decoder()}/environ")
        if not given.exists():
            pytest.skip("the environment is read through /proc")
        try:
            text = given.read_bytes()
        except PermissionError:
            pytest.skip("another process's environment may not be read here")
        assert b"PYTHONPATH" in text
        assert b"hunter2" not in text


@pytest.mark.slow
def test_nothing_is_left_after_many(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", moving_frames(8))
    before: int | None = None
    for number in range(20):
        source = open_source(path, sandbox=SandboxSettings())
        pid = decoder()
        if number % 3 == 0:
            source.close()
        elif number % 3 == 1:
            next(source.frames())
            source.close()
        else:
            assert len(list(source.frames())) == 8
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        if number == 1:
            before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_pictures_are_handed_over_one_by_one(tmp_path: Path) -> None:
    frames = moving_frames(40, (32, 32))
    folder = write_images(tmp_path / "pictures", frames)
    with open_source(folder, stride=3, start_seconds=0.1, sandbox=SandboxSettings()) as source:
        read = list(source.frames())
    assert len(read) == 13
    for frame, original in zip(read, frames[3::3], strict=True):
        np.testing.assert_array_equal(frame.rgb, original)
