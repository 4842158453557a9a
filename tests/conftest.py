"""What several test modules use."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Sums are rounded otherwise by OpenBLAS's code for each kind of processor; read when NumPy is first imported.
if platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")

from tests.tiny_qwen import make_tiny as make_tiny
from tests.tiny_qwen import tiny as tiny
from tests.tiny_qwen import tiny_qwen as tiny_qwen

# How long an example takes says how busy the machine is.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process; exit code, standard output and standard error."""
    from arr_stream.cli import main

    return _runner(main, monkeypatch, capfd)


@pytest.fixture
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's server is asked once."""
    monkeypatch.setattr("arr_stream.vlm.server.chat.RETRIES", 0)


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `python -m benchmarks` likewise."""
    from benchmarks.__main__ import main

    return _runner(main, monkeypatch, capfd)


def _runner(main: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["arr-stream", *(str(argument) for argument in arguments)])
        capfd.readouterr()
        code = 0
        try:
            main()
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and self-signed certificate for this machine, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    pem, key = tmp_path_factory.mktemp("tls") / "both.pem", tmp_path_factory.mktemp("tls") / "key.pem"
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject)
    subprocess.run([*command, "-keyout", key, "-out", pem], check=True, capture_output=True)
    pem.write_text(pem.read_text() + key.read_text())
    return pem


@pytest.fixture
def refused(run: Run) -> Refused:
    """Runs what is to end with a code, and one line with some words in it."""

    def call(code: int, said: str, *arguments: object) -> None:
        ended, out, err = run(*arguments)
        assert (ended, out) == (code, ""), err
        assert said in err
        if code != 2:
            assert len(err.strip().splitlines()) == 1, err
            assert err.startswith("arr-stream: ") and "internal error" not in err

    return call


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the command line in a process of its own, which does not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: object, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "arr_stream", *(str(argument) for argument in arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()
