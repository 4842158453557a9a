"""The whole application: every route, behind the security."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from arr_stream.errors import BackendUnavailable

try:
    from fastapi import FastAPI
except ModuleNotFoundError as exc:
    raise BackendUnavailable(
        f"the server needs the package {exc.name}, which is missing", remedy="pip install 'arr-stream[web]'"
    ) from exc

import arr_stream
from arr_stream.web.events import event_routes
from arr_stream.web.info import info_routes
from arr_stream.web.pages import page_routes
from arr_stream.web.pictures import picture_routes
from arr_stream.web.problems import add_handlers
from arr_stream.web.questions import question_routes
from arr_stream.web.security import Security
from arr_stream.web.serving import Serving
from arr_stream.web.streams import stream_routes


def create_app(serving: Serving, on_error: Callable[[Exception], None]) -> Security:
    """An ASGI application.

    Args:
        serving: What it serves. Its streams are not closed with the application.
        on_error: Called with an error that nobody expected.

    Raises:
        BackendUnavailable: A package of the extra `web` is missing.
    """
    if serving.allowed.browser:
        from arr_stream.web.webrtc import BrowserCameras

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        # Made here, since it belongs to the running event loop.
        if serving.allowed.browser:
            serving.cameras = BrowserCameras(loopback=serving.access.loopback, most=serving.streams.most_streams)
        try:
            yield
        finally:
            serving.clients.end()
            cameras, serving.cameras = serving.cameras, None
            if cameras is not None:
                await cameras.close()

    app = FastAPI(
        title="arr-stream",
        version=arr_stream.__version__,
        description="Live streams, what is looked for in them, and what was chosen.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    add_handlers(app)
    for routes in (info_routes, stream_routes, question_routes, picture_routes, event_routes):
        app.include_router(routes(serving))
    page_routes(app)
    return Security(app, serving.access, on_error)
