"""The session for an unknown server, which sends cells if the server has the plugin, and the one for a plain server.

The latter keeps frames as pictures and sends them with each question.
"""

from __future__ import annotations

import base64
import math
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from arr_stream.config import Settings, VlmSettings
from arr_stream.errors import ContextExceeded, EmptyQuery, InvalidSetting, NothingChosen, ServerFailed
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame, tokens_of
from arr_stream.vlm import OnText, Stop
from arr_stream.vlm.server.chat import ChatServer, Endpoint
from arr_stream.vlm.server.packing import Packed, encode, pack

if TYPE_CHECKING:
    from arr_stream.vlm.server.carrying import CarryingSession

MARKER_TOKENS = 2
"""Tokens that begin and end a picture."""
MESSAGE_TOKENS = 8
"""Approximate tokens that a chat template adds to a message."""
_PROBE_AGAIN_SECONDS = 10.0
"""Pause before a server that did not say whether it places cells is asked again."""
_CROPS = "sent as crops, about where they are: the server"


@dataclass(frozen=True, slots=True)
class _Part:
    """One picture as it is sent, with the text before it."""

    caption: str
    url: str
    visual_tokens: int

    @property
    def tokens(self) -> int:
        return self.visual_tokens + MARKER_TOKENS + text_tokens(self.caption)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One frame as it is sent: the overview, then the crops."""

    index: int
    pts_seconds: float
    parts: tuple[_Part, ...]

    @property
    def time(self) -> str:
        return f"At {self.pts_seconds:.1f} s."

    @property
    def tokens(self) -> int:
        return text_tokens(self.time) + sum(part.tokens for part in self.parts)

    @property
    def visual_tokens(self) -> int:
        return sum(part.visual_tokens for part in self.parts)

    def without_crops(self) -> _Seen:
        return _Seen(self.index, self.pts_seconds, self.parts[:1])


class ServerSession:
    """`ModelSession` that keeps the chosen cells as pictures and sends them to a model's `server` with each question.

    One thread can show frames while another waits for an answer.

    Raises:
        InvalidSetting: The endpoint is no http or https address, or no model is named.
        BackendUnavailable: `openai` is not installed.
    """

    def __init__(self, settings: VlmSettings) -> None:
        endpoint = Endpoint.parse(settings.endpoint, settings.key_variable)
        if not settings.model:
            raise InvalidSetting(
                f"{endpoint.shown}: no model is named",
                remedy=f"give --model NAME (vlm.model); {endpoint.shown}/models lists them",
            )
        self.name = settings.model
        self._settings = settings
        self.server = ChatServer(endpoint, settings.model, timeout_seconds=settings.timeout_seconds)
        self._lock = threading.Lock()
        self._seen: deque[_Seen] = deque()

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """Keep the pictures of one frame, and the overviews of as many earlier frames as fit into the context."""
        packed = pack(frame.rgb, patches)
        newest = _Seen(frame.index, frame.pts_seconds, _parts(packed))
        room = self._room("") - newest.tokens
        if room < 0:
            raise self._exceeded(f"frame {frame.index} takes {newest.tokens} tokens", "lower selection.budget")
        with self._lock:
            earlier = [seen.without_crops() for seen in self._seen]
            self._seen = deque([*_last_that_fit(earlier, room), newest])
            tokens = sum(seen.visual_tokens for seen in self._seen)
        sent = int(tokens_of(patches.level)[packed.cells_shown].sum())
        return Feeding(frame_index=frame.index, sent=sent, memory_tokens=tokens)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Answer a question; an interrupted answer is `failed`, with its text and a reason. See `ModelSession.ask`."""
        if not question.strip():
            raise EmptyQuery("the question is empty", remedy="ask something")
        frames = self._frames_for(question)
        settings, newest = self._settings, frames[-1]
        tokens = sum(seen.visual_tokens for seen in frames)
        messages = _messages(frames, question, settings.instruction)
        asked = Answer(
            question, "", newest.index, newest.pts_seconds, self.name, visual_tokens=tokens, memory_tokens=tokens
        )
        return self.server.ask(messages, asked=asked, answer_tokens=settings.answer_tokens, on_text=on_text, stop=stop)

    @property
    def attention(self) -> FloatArray | None:
        return None  # servers do not report it

    def close(self) -> None:
        self.server.close()

    def _frames_for(self, question: str) -> list[_Seen]:
        """Return the newest frame, preceded by the earlier ones that fit beside it and the question."""
        with self._lock:
            frames = list(self._seen)
        if not frames:
            raise NothingChosen("no frame was shown to the model yet", remedy="show it one before asking")
        room = self._room(question) - frames[-1].tokens
        if room < 0:
            raise self._exceeded(
                f"a question of about {text_tokens(question)} tokens beside a frame of {frames[-1].tokens}",
                "ask more briefly",
            )
        return [*_last_that_fit(frames[:-1], room), frames[-1]]

    def _room(self, question: str) -> int:
        """Return the number of tokens left for frames."""
        said = text_tokens(self._settings.instruction) + text_tokens(question) + 2 * MESSAGE_TOKENS
        return self._settings.context_tokens - self._settings.answer_tokens - said

    def _exceeded(self, what: str, remedy: str) -> ContextExceeded:
        limits = f"vlm.context_tokens={self._settings.context_tokens}, of which {self._settings.answer_tokens} answer"
        return ContextExceeded(f"{what}, with {limits}", remedy=f"{remedy}, or raise vlm.context_tokens")


class EitherSession:
    """`ModelSession` that tests whether a server places cells; until it answers, and if it does not, it gets crops.

    Raises:
        InvalidSetting, BackendUnavailable: See `ServerSession`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._crops = ServerSession(settings.vlm)
        self._decided: ServerSession | CarryingSession | None = None
        self._again_seconds = 0.0
        self._note: str | None = None
        self.name = self._crops.name

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """Show a frame, as cells or as crops; see `ModelSession.see`."""
        if self._decided is None and time.monotonic() >= self._again_seconds:
            self._decide()
        return (self._decided or self._crops).see(frame, patches)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Answer a question; the answer notes how the cells are sent when that has changed. See `ModelSession.ask`."""
        answer = (self._decided or self._crops).ask(question, on_text=on_text, stop=stop)
        if answer.error is None and self._note is not None:
            answer, self._note = replace(answer, note=self._note), None
        return answer

    @property
    def attention(self) -> FloatArray | None:
        return None  # servers do not report it

    def close(self) -> None:
        if self._decided is not None:
            self._decided.close()
        self._crops.close()

    def _decide(self) -> None:
        from arr_stream.vlm.server.carrying import CarryingSession, places_cells

        try:
            places = places_cells(self._crops.server)
        except ServerFailed:
            if not self._again_seconds:
                self._note = f"{_CROPS} did not say in time whether it has the plugin"
            self._again_seconds = time.monotonic() + _PROBE_AGAIN_SECONDS
            return
        self._decided = CarryingSession(self._crops.server, self._settings) if places else self._crops
        self._note = "sent as cells at their true places" if places else f"{_CROPS} has no arr-stream plugin"


def _parts(packed: Packed) -> tuple[_Part, ...]:
    parts = []
    for picture in packed.pictures:
        media_type, data = encode(picture.rgb)
        url = f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
        parts.append(_Part(picture.caption, url, picture.tokens))
    return tuple(parts)


def _last_that_fit(frames: list[_Seen], room: int) -> list[_Seen]:
    """Return the newest of the earlier frames whose overviews fit, in order."""
    kept: list[_Seen] = []
    for seen in reversed([seen.without_crops() for seen in frames]):
        room -= seen.tokens
        if room < 0:
            break
        kept.append(seen)
    return kept[::-1]


def _messages(frames: list[_Seen], question: str, instruction: str) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for seen in frames:
        for number, part in enumerate(seen.parts):
            caption = part.caption if number else f"{seen.time} {part.caption}"
            content.append({"type": "text", "text": caption})
            content.append({"type": "image_url", "image_url": {"url": part.url}})
    return asked_of(content, question, instruction)


def asked_of(content: list[dict[str, Any]], question: str, instruction: str) -> list[dict[str, Any]]:
    """Return the messages of one request: the instruction, if any, then the content with the question at its end."""
    told = [{"role": "system", "content": instruction}] if instruction else []
    return [*told, {"role": "user", "content": [*content, {"type": "text", "text": question}]}]


def text_tokens(text: str) -> int:
    """Estimate the tokens of a text: three bytes each, on the safe side for most tokenizers and languages."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 3)
