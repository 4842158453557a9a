"""Pictures for plain clients: JPEGs in one endless answer, each as soon as the one before has left."""

from __future__ import annotations

import json
import struct

from starlette.types import Receive, Scope, Send

from arr_stream.draw.views import check_view
from arr_stream.live.runner import StreamRunner
from arr_stream.web.clients import Bell
from arr_stream.web.security import TRANSPORT
from arr_stream.web.serving import Serving
from arr_stream.web.sockets import EndlessResponse

_BOUNDARY = "arr-stream-picture"
_HEAD = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\n\r\n".encode()


class Mjpeg(EndlessResponse):
    """The newest picture each time that the client has taken the last one.

    A part ends where the next one's header begins, and browsers show it only then: that header is sent with it, though
    the next picture is not there yet. So a part cannot say how long it is.

    Args:
        serving: What the server has.
        runner: Whose pictures.
        view: Which.

    Raises:
        InvalidSetting: There is no such view.
    """

    def __init__(self, serving: Serving, runner: StreamRunner, view: str) -> None:
        super().__init__(serving, runner.id, f"multipart/x-mixed-replace; boundary={_BOUNDARY}")
        self._runner = runner
        self._view = check_view(view)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # What waits to be sent is old by the time it arrives: better that it does not wait here.
        transport = scope.get("state", {}).get(TRANSPORT)
        if transport is not None:
            transport.set_write_buffer_limits(high=0)
        await super().__call__(scope, receive, send)

    async def speak(self, send: Send, bell: Bell) -> None:
        watching = self._runner.room.watch([self._view], bell.ring)
        subscription = self.serving.wake_for(bell.ring, "streams")
        try:
            await _send(send, _HEAD)
            while not self.serving.clients.ended and self.serving.has(self._runner) and watching.error is None:
                message = watching.take()
                if message is None:
                    await bell.wait()
                    continue
                sequence, jpeg = _unpacked(message)
                await _send(send, b"\r\n".join([jpeg, _HEAD]))
                # Returns when all before it has gone to the system.
                await _send(send, b"")
                self.serving.observer.picture_sent(self._runner)
                watching.acknowledge(sequence)
        finally:
            watching.close()
            self.serving.streams.hub.unsubscribe(subscription)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _unpacked(message: bytes) -> tuple[int, bytes]:
    """Number and picture of a message that has one; see `arr_stream.live.pictures.message`."""
    (length,) = struct.unpack_from("<I", message)
    header = json.loads(message[4 : 4 + length])
    return header["seq"], message[4 + length :]
