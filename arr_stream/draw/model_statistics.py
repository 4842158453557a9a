"""What a model took in and answered over a run, in memory that does not grow with its length."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from arr_stream.answers import model_name
from arr_stream.draw.run_statistics import Quantiles
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.plain_text import one_line, redact_url

_KEPT_ANSWERS = 1000


@dataclass(slots=True)
class ModelStatistics:
    """Counts over all frames that a model was given, and the newest 1000 answers."""

    frames: int = 0
    failed_frames: int = 0
    sent: int = 0
    held: int = 0
    memory_tokens: int = 0
    most_memory_tokens: int = 0
    most_cache_bytes: int = 0
    rebuilt: Counter[str] = field(default_factory=Counter)
    vision: Quantiles = field(default_factory=Quantiles)
    prefill: Quantiles = field(default_factory=Quantiles)
    answers: int = 0
    failed_answers: int = 0
    newest: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_KEPT_ANSWERS))

    def add(self, patches: PatchSet) -> None:
        """Count one frame."""
        if patches.feeding is not None:
            self._add_feeding(patches.feeding)
        for answer in patches.answers:
            self._add_answer(answer)

    def _add_feeding(self, feeding: Feeding) -> None:
        self.frames += 1
        self.sent += feeding.sent
        self.held += feeding.held
        self.memory_tokens = feeding.memory_tokens
        self.most_memory_tokens = max(self.most_memory_tokens, feeding.memory_tokens)
        self.most_cache_bytes = max(self.most_cache_bytes, feeding.cache_bytes)
        if feeding.rebuilt is not None:
            self.rebuilt[feeding.rebuilt] += 1
        if feeding.error is not None:
            self.failed_frames += 1
        else:
            self.vision.add(feeding.vision_ms)
            self.prefill.add(feeding.prefill_ms)

    def _add_answer(self, answer: Answer) -> None:
        self.answers += 1
        self.failed_answers += answer.finish == "failed"
        self.most_cache_bytes = max(self.most_cache_bytes, answer.cache_bytes)
        self.newest.append(
            {
                "pts_seconds": round(answer.pts_seconds, 6),
                "question": redact_url(answer.question),
                "text": redact_url(answer.text),
                "model": model_name(answer.model),
                "answer_tokens": answer.answer_tokens,
                "prefill_ms": round(answer.prefill_ms, 3),
                "decode_ms": round(answer.decode_ms, 3),
                "finish": answer.finish,
                "error": one_line(answer.error),
            }
        )

    def summary(self) -> dict[str, Any] | None:
        """Everything counted, as plain JSON values; None where no model watched."""
        if not self.frames and not self.answers:
            return None
        return {
            "feeding": {
                "frames": self.frames,
                "failed": self.failed_frames,
                "sent": self.sent,
                "held": self.held,
                "rebuilt": dict(self.rebuilt.most_common()),
                "memory_tokens": {"last": self.memory_tokens, "max": self.most_memory_tokens},
                "cache_bytes_max": self.most_cache_bytes,
                "vision_ms": self.vision.summary(),
                "prefill_ms": self.prefill.summary(),
            },
            "answers": {"count": self.answers, "failed": self.failed_answers, "newest": list(self.newest)},
        }
