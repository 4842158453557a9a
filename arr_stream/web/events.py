"""Events of the streams over a WebSocket."""

from __future__ import annotations

import json

from fastapi import APIRouter
from starlette.websockets import WebSocket

from arr_stream.live.events import Subscription
from arr_stream.web.problems import NoSuchThing
from arr_stream.web.serving import Serving, WakeUp
from arr_stream.web.sockets import ENDING, MALFORMED, NO_STREAM, Close, MalformedMessage, StayingSocket

KINDS = ("streams", "state", "frame", "summary", "asking", "text", "answer", "alert", "notice")


class EventSocket(StayingSocket):
    """Listener on a WebSocket; its address names the streams and kinds of events to send, none for all."""

    async def speak(self, wake_up: WakeUp) -> Close:
        query = self.websocket.query_params
        kinds = frozenset(query.getlist("kind"))
        for kind in kinds.difference(KINDS):
            message = f"there are no events of kind {kind[:40]!r}"
            await self.complain(f"{message}; choose of {', '.join(KINDS)}")
            return Close(MALFORMED, message)
        try:
            streams = {self.serving.runner(id).id for id in query.getlist("stream")}
        except NoSuchThing as exc:
            await self.complain(str(exc))
            return Close(NO_STREAM, exc.message)
        with self.serving.events(Subscription(wake_up.ring, streams or None, kinds or None)) as subscription:
            if subscription.wants("streams", None):
                listed = {"type": "streams", "streams": self.serving.streams.statuses()}
                # The list comes first; events from while it was made come after it.
                for event in (listed, *subscription.drain()):
                    subscription.put(event)
            while not self.serving.clients.ended:
                for event in subscription.drain():
                    await self.send(json.dumps(event, ensure_ascii=False))
                await wake_up.wait()
        return Close(ENDING, "the server is ending")

    def on_message(self, text: str) -> None:
        """Handle a text message; see `StayingSocket.on_message`."""
        raise MalformedMessage("nothing is expected here; commands go to /api/streams")


def event_routes(serving: Serving) -> APIRouter:
    router = APIRouter(tags=["events"])

    @router.websocket("/api/events")
    async def events(websocket: WebSocket) -> None:
        await EventSocket(serving, websocket).run()

    return router
