"""Routes for the server's facts, health and metrics, and for the page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import FileResponse, JSONResponse
from starlette.staticfiles import StaticFiles

import arr_stream
from arr_stream.draw.views import VIEWS
from arr_stream.sources.live import list_cameras
from arr_stream.texture.layout import CHANNELS
from arr_stream.web.problems import Forbidden
from arr_stream.web.serving import Serving
from arr_stream.web.settings import describe

_STATIC = Path(__file__).parent / "static"
_CHANNELS = [
    {
        "index": channel.index,
        "name": channel.name,
        "description": channel.meaning,
        "low": channel.low,
        "high": channel.high,
    }
    for channel in CHANNELS
]


def info_routes(serving: Serving) -> APIRouter:
    router = APIRouter(tags=["server"])

    @router.get("/healthz")
    def health() -> JSONResponse:
        """Report whether all streams' threads run; needs no token."""
        runners = serving.streams.runners
        well = all(runner.alive for runner in runners)
        told = {
            "status": "ok" if well else "degraded",
            "version": arr_stream.__version__,
            "streams": len(runners),
            "live": sum(runner.live for runner in runners),
            "uptime_seconds": round(time.monotonic() - serving.started_seconds, 1),
        }
        return JSONResponse(told, 200 if well else 503)

    @router.get("/metrics", response_class=Response)
    def metrics() -> Response:
        """Return all metrics, for Prometheus."""
        text, content_type = serving.streams.metrics(len(serving.clients))
        return Response(text, media_type=content_type)

    @router.get("/api/info")
    def info() -> dict[str, Any]:
        """Return this server's version, limits and permissions."""
        allowed = serving.allowed
        return {
            "version": arr_stream.__version__,
            "views": list(VIEWS),
            "channels": _CHANNELS,
            "presets": [{"name": name, "description": text} for name, text in serving.presets.items()],
            "sources": {
                "cameras": allowed.cameras,
                "named": allowed.public_names,
                "patterns": list(allowed.patterns),
                "folders": bool(allowed.folders),
            },
            "model": serving.model,
            "settings": describe(serving.streams.settings),
            "max_streams": serving.streams.most_streams,
        }

    @router.get("/api/cameras")
    def cameras() -> list[dict[str, str]]:
        """List the cameras of the server."""
        if not serving.allowed.cameras:
            raise Forbidden("the server's cameras are not allowed", remedy="start it with --allow cameras")
        return [{"source": camera.source, "name": camera.name} for camera in list_cameras()]

    return router


def page_routes(app: FastAPI) -> None:
    """Add the routes of the pages that a user opens."""

    @app.get("/", include_in_schema=False)
    def index() -> FileResponse:
        return FileResponse(_STATIC / "index.html", media_type="text/html")

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> FileResponse:
        return FileResponse(_STATIC / "icon.svg", media_type="image/svg+xml")

    app.mount("/static", StaticFiles(directory=_STATIC, follow_symlink=False), name="static")
