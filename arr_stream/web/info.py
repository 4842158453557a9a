"""What this server is, what it allows, how it is doing, and the clips that alerts have recorded."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, JSONResponse

import arr_stream
from arr_stream.draw.views import VIEWS
from arr_stream.live.clips import find_clip, list_clips
from arr_stream.sources.live import list_cameras
from arr_stream.texture.layout import CHANNELS
from arr_stream.web.problems import Forbidden, NoSuchThing
from arr_stream.web.serving import Serving
from arr_stream.web.settings import describe

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
        """Whether all streams' threads run; needs no token."""
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
        """Everything that is counted and measured, for Prometheus."""
        text, content_type = serving.observer.metrics(serving.streams, len(serving.clients))
        return Response(text, media_type=content_type)

    @router.get("/api/info")
    def info() -> dict[str, Any]:
        """What this server is and allows."""
        allowed = serving.allowed
        return {
            "version": arr_stream.__version__,
            "views": list(VIEWS),
            "channels": _CHANNELS,
            "presets": [{"name": name, "description": text} for name, text in serving.presets.items()],
            "sources": {
                "browser": allowed.browser,
                "cameras": allowed.cameras,
                "named": allowed.public_names,
                "patterns": list(allowed.patterns),
                "folders": bool(allowed.folders),
            },
            "model": serving.model,
            "settings": describe(serving.streams.settings),
            "max_streams": serving.streams.most_streams,
            "alerts": list(serving.observer.plan.rules),
        }

    @router.get("/api/cameras")
    def cameras() -> list[dict[str, str]]:
        """The cameras of the server."""
        if not serving.allowed.cameras:
            raise Forbidden("the server's cameras may not be opened", remedy="start it with --allow-cameras")
        return [{"source": camera.source, "name": camera.name} for camera in list_cameras()]

    @router.get("/api/clips")
    def clips() -> list[dict[str, Any]]:
        """Clips that alerts have recorded, the newest first."""
        folder = serving.observer.plan.clip_folder
        found = list_clips(folder) if folder is not None else []
        return [{"name": clip.name, "bytes": clip.bytes, "made_unix": round(clip.made_unix, 3)} for clip in found]

    @router.get("/api/clips/{name}", response_class=FileResponse)
    def clip(name: str) -> FileResponse:
        """A clip, as MP4."""
        folder = serving.observer.plan.clip_folder
        path = find_clip(folder, name) if folder is not None else None
        if path is None:
            raise NoSuchThing("there is no such clip", remedy="GET /api/clips lists them")
        return FileResponse(path, media_type="video/mp4")

    return router
