"""Live streams for tests, fed by hand or made by FFmpeg."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.keyframes.worker import KeyframeWorker, WorkerPool, make_workers
from arr_stream.live.publishing import encode
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.types import ByteArray

LIGHT = Settings().with_values(
    {"keyframes.text": "none", "keyframes.objects": "off", "keyframes.clusters": "grid", "selection.budget": "12"}
)
"""Settings whose keyframes cost little."""

TEST_PICTURE = "lavfi:testsrc2=size=160x128:rate=30"


def _workers(settings: Settings) -> tuple[KeyframeWorker, ...]:
    """Workers of which those of `sam` lack a package."""
    if settings.keyframes.clusters == "sam":
        return (KeyframeWorker(settings, factory="tests.keyframe_fakes:make_unavailable"),)
    return make_workers(settings)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Lends workers that live as long as the module's tests; those of `sam` are not available."""
    made = WorkerPool(_workers)
    with closing(made.lease(LIGHT)) as lease:
        assert lease.wait_ready(60.0)
        yield made


def picture(value: int = 0, size_wh: tuple[int, int] = (160, 128)) -> ByteArray:
    """Noise that stays, with a square whose place says `value`."""
    rgb = np.random.default_rng(3).integers(60, 200, (size_wh[1], size_wh[0], 3), np.uint8)
    x = 8 * (value % 10)
    rgb[32:64, x : x + 32] = (255, 0, 0)
    return rgb


def jpeg(value: int = 0, size_wh: tuple[int, int] = (160, 128)) -> bytes:
    """The same as a browser sends it."""
    return encode(picture(value, size_wh), quality=95)


def fed_source(settings: Settings = LIGHT, size_wh: tuple[int, int] = (160, 128)) -> BrowserSource:
    """A source whose first picture is there; push the others."""
    source = BrowserSource("fed", settings)
    source.push(jpeg(0, size_wh), time.monotonic())
    source.wait_first()
    return source


def wait_until(true: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for a condition; fails when it does not come about."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "what was waited for did not come about"
        time.sleep(0.01)


@contextmanager
def no_thread_left(seconds: float = 15.0) -> Iterator[None]:
    """Fails unless every thread of the product that began within has ended soon after."""
    before = set(threading.enumerate())
    yield
    wait_until(lambda: not [t for t in set(threading.enumerate()) - before if t.name.startswith("arr-stream")], seconds)
