"""A browser's camera or screen becomes a stream."""

from __future__ import annotations

from typing import Any, cast

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from arr_stream.config import Settings
from arr_stream.live.runner import StreamRunner
from arr_stream.sources.base import Source
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.sources.live.connection import OnState
from arr_stream.web.bodies import Offer
from arr_stream.web.serving import Forbidden, Serving
from arr_stream.web.streams import check_room

_SOURCE_NAME = "browser"


def browser_routes(serving: Serving) -> APIRouter:
    router = APIRouter(tags=["streams"])

    @router.post("/api/browser", status_code=201)
    async def offer(offer: Offer) -> dict[str, Any]:
        """Answer a browser that offers its camera or screen; the stream is gone when the connection ends."""
        if serving.cameras is None:
            raise Forbidden("cameras of browsers are not taken", remedy="start the server without --no-browser")
        check_room(serving)
        streams = serving.streams
        settings = streams.preset(offer.preset) if offer.preset is not None else streams.settings
        made: list[StreamRunner] = []

        async def take(source: BrowserSource) -> None:
            made.append(await run_in_threadpool(_add, serving, source, offer))

        name = offer.name or "browser camera"
        sdp = await serving.cameras.answer(offer.sdp, offer.type, take, settings=settings, name=name)
        return {"sdp": sdp, "type": "answer", "stream": made[0].status()}

    return router


def _add(serving: Serving, source: BrowserSource, offer: Offer) -> StreamRunner:
    def open_it(_settings: Settings, _on_state: OnState) -> Source:
        source.wait_first()
        # Its `info` is known by now, and never set again.
        return cast(Source, source)

    return serving.streams.add(
        _SOURCE_NAME, opener=open_it, name=source.name, query=offer.query, preset=offer.preset, once=True
    )
