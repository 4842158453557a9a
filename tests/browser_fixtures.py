"""Fixtures for tests of the page; modules name them with `pytest_plugins = ("tests.browser_fixtures",)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from arr_stream.errors import BackendUnavailable
from benchmarks.live.browser import CAMERA_ARGUMENTS, chromium
from tests.browser import Page, Server, serving


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium with a fake camera."""
    try:
        with chromium(CAMERA_ARGUMENTS) as made:
            yield made
    except BackendUnavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    """A server that may open test pictures and addresses of this machine."""
    with serving("--allow", "lavfi:testsrc2*", "--allow", "http://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The same without streams, before and after each test."""
    shared_server.remove_all()
    yield shared_server
    shared_server.remove_all()


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens pages; in the end none may have complained but as the test expected."""
    contexts, pages = [], []

    def make(server: Server, *, width: int = 1280, height: int = 800, **more: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **more)
        contexts.append(context)
        pages.append(Page(context, server))
        return pages[-1]

    yield make
    for context in contexts:
        context.close()
    assert [complaint for page in pages for complaint in page.unexpected] == []


@pytest.fixture
def page(server: Server, new_page: Callable[..., Page]) -> Page:
    """The page, open and connected, without streams."""
    made = new_page(server)
    made.open()
    made.connected()
    return made
