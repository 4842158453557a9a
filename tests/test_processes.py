"""Child processes of our own: what they answer, and that they end, whoever ends first and whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from arr_stream.errors import InvalidSetting
from arr_stream.processes import ChildProcess, Ready, Refused, Reply, environment, serving_command

MODULE = "tests.test_processes"


def act(first: str) -> Callable[[object, Reply], None]:
    """In the child: does what it is asked."""
    if first == "refuse":
        raise InvalidSetting("no such thing", remedy="choose another")
    if first == "print":
        sys.stdout.reconfigure(line_buffering=True)
        print("a careless library")  # noqa: T201
        os.write(1, b"writes to the descriptor\n")

    def respond(asked: object, reply: Reply) -> None:
        match asked:
            case "hang":
                time.sleep(3600)
            case "exit":
                sys.stderr.write("the reason\n")
                sys.stderr.flush()
                os._exit(3)
            case "raise":
                raise ArithmeticError("a mistake")
            case "chatter":
                for number in range(20_000):
                    os.write(2, b"%099d\n" % number)
                reply("said")
            case "leave a child":
                subprocess.Popen(["sleep", "3"])
                os._exit(0)
            case "threads":
                reply(os.environ["OMP_NUM_THREADS"])
            case _:
                reply(asked)

    return respond


@pytest.fixture
def child() -> Iterator[Callable[..., ChildProcess]]:
    started: list[ChildProcess] = []

    def start(first: object = "", make: str = f"{MODULE}:act", **options: object) -> ChildProcess:
        started.append(ChildProcess(serving_command(make), environment(2), **options))  # type: ignore[arg-type]
        started[-1].send(first)
        return started[-1]

    yield start
    for one in started:
        one.close()
        one.close()
        assert not one.alive


def test_messages_come_back_with_their_arrays(child: Callable[..., ChildProcess]) -> None:
    process = child("print")
    assert process.receive() == Ready()
    # It is out of reach of Ctrl-C.
    assert os.getpgid(process.process_id) != os.getpgid(0) and os.getsid(process.process_id) == os.getsid(0)
    picture = np.arange(1 << 18, dtype=np.uint8).reshape(512, 512)
    process.send({"picture": picture, "index": 3})
    returned = process.receive()
    np.testing.assert_array_equal(returned["picture"], picture)
    assert returned["index"] == 3 and returned["picture"].flags.writeable
    process.send("threads")
    assert process.receive() == "2"
    # What is printed does not get among the messages.
    process.kill()
    assert process.exit_code(20.0) == -signal.SIGKILL
    assert process.last_words().splitlines() == ["a careless library", "writes to the descriptor"]


@pytest.mark.parametrize(
    ("make", "first", "error", "words"),
    [
        (f"{MODULE}:act", "refuse", "InvalidSetting", "no such thing"),
        (f"{MODULE}:nothing", "", "AttributeError", "nothing"),
        ("tests.no_such_module:act", "", "ModuleNotFoundError", "no_such_module"),
    ],
)
def test_who_cannot_begin_says_why(
    child: Callable[..., ChildProcess], make: str, first: str, error: str, words: str
) -> None:
    process = child(first, make)
    refused = process.receive()
    assert isinstance(refused, Refused) and refused.error == error and words in refused.message
    ours = refused.as_error()
    assert isinstance(ours, InvalidSetting) if error == "InvalidSetting" else ours is None
    assert process.exit_code(20.0) == 1


@pytest.mark.parametrize(("asked", "code", "words"), [("exit", 3, "the reason"), ("raise", 1, "a mistake")])
def test_one_that_ends_is_told_with_its_last_words(
    child: Callable[..., ChildProcess], asked: str, code: int, words: str
) -> None:
    process = child()
    assert process.receive() == Ready()
    process.send(asked)
    # Its end is not taken for a lack of time.
    with pytest.raises(EOFError), process.within(60.0):
        process.receive()
    assert process.exit_code(20.0) == code
    assert process.last_words().splitlines()[-1].endswith(words)


def test_of_endless_output_only_the_end_is_kept(child: Callable[..., ChildProcess]) -> None:
    process = child()
    assert process.receive() == Ready()
    with process.within(60.0):
        process.send("chatter")
        assert process.receive() == "said"
    process.close()
    words = process.last_words()
    assert words.endswith("19999") and len(words) <= 4000
    assert len(process._last_bytes) <= 4000


def test_a_process_left_behind_with_the_same_output_delays_nothing(child: Callable[..., ChildProcess]) -> None:
    process = child()
    assert process.receive() == Ready()
    process.send("leave a child")
    assert process.exit_code(20.0) == 0
    began = time.monotonic()
    process.close(0.1)
    assert time.monotonic() - began < 2


def test_one_that_hangs_is_killed_and_one_in_time_is_not(child: Callable[..., ChildProcess]) -> None:
    process = child(new_session=True)
    with process.within(60.0):
        assert process.receive() == Ready()
    assert process.alive and os.getsid(process.process_id) != os.getsid(0)
    process.send("hang")
    with pytest.raises(TimeoutError, match=r"took longer than 0\.3 s"), process.within(0.3):
        process.receive()
    assert process.exit_code(20.0) == -signal.SIGKILL
