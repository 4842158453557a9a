"""Cameras and screens of browsers, which come in by WebRTC."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.web.webrtc_sdp import OfferRefused, checked_offer

try:
    import aioice.ice

    from arr_stream.web.webrtc_peer import Peer
except ModuleNotFoundError as exc:
    raise BackendUnavailable(
        f"WebRTC needs the package {exc.name}, which is missing", remedy="pip install 'arr-stream[web]'"
    ) from exc


class TooManyPeers(OfferRefused):
    """As many browsers send already as are allowed."""


class BrowserCameras:
    """Answers browsers that offer their camera or screen; made and used in the server's event loop.

    No STUN or TURN server is ever asked: a browser must reach the server directly, by UDP.

    Args:
        loopback: The server listens on a loopback address; then 127.0.0.1 is offered to the browser too. It is also
            offered where the machine has no other address.
        most: How many browsers may send at a time.
    """

    def __init__(self, *, loopback: bool, most: int = 8) -> None:
        self._loopback = loopback
        self._most = most
        self._peers: set[Peer] = set()
        self._closed = False

    def __len__(self) -> int:
        """How many browsers send, or are about to."""
        return len(self._peers)

    async def answer(
        self,
        offer_sdp: str,
        offer_type: str,
        on_source: Callable[[BrowserSource], object],
        *,
        settings: Settings,
        name: str = "browser camera",
    ) -> str:
        """Answer an offer.

        Args:
            offer_sdp: The browser's session description, whole: with `setLocalDescription` done; its candidates are
                not used and need not be waited for.
            offer_type: Its type, `offer`.
            on_source: Gets the source before anything has come through it, and may refuse by raising; must not wait for
                pictures. If it returns something to await, that is awaited. Closing the source ends the connection.
            settings: Of the source.
            name: Of the source.

        Returns:
            The answer's session description; its type is `answer`.

        Raises:
            OfferRefused: Malformed, too large, or not one video.
            NoVideoStream: No video that the browser sends.
            TooManyPeers: As many as allowed are there, or the server is ending.
            Whatever `on_source` raises.
        """
        offer_sdp = checked_offer(offer_sdp, offer_type)
        if self._closed or len(self._peers) >= self._most:
            raise TooManyPeers(
                f"WebRTC: {len(self._peers)} browsers send already, at most {self._most} may",
                remedy="end one of them first",
            )
        peer = Peer(name, settings, loopback=self._with_loopback(), on_end=self._peers.discard)
        self._peers.add(peer)
        try:
            answer_sdp = await peer.negotiate(offer_sdp)
            made = on_source(peer.source)
            if inspect.isawaitable(made):
                await made
        except BaseException:
            await peer.end()
            raise
        return answer_sdp

    async def close(self) -> None:
        """End all connections, their sources and threads, within two seconds; nothing is answered afterwards."""
        self._closed = True
        await asyncio.gather(*(peer.end() for peer in list(self._peers)), return_exceptions=True)

    def _with_loopback(self) -> bool:
        return self._loopback or not aioice.ice.get_host_addresses(use_ipv4=True, use_ipv6=True)
