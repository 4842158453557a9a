"""The tiny Qwen3-VL that ships with arr-stream: it needs no download and knows only drawn shapes and signs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from arr_stream.config import VlmSettings
from arr_stream.errors import InvalidSetting
from arr_stream.vlm import TINY_LIMITS
from arr_stream.vlm.qwen3_vl.cells import Normalisation
from arr_stream.vlm.qwen3_vl.loading import LoadedModel, pick_vlm_device, quantisation
from arr_stream.vlm.qwen3_vl.network import Network
from arr_stream.weights import load_state_dict
from arr_stream.weights.catalogue import TINY_QWEN, shipped_folder

_WORD = re.compile(r"[^\W\d_]+")


def load_shipped(settings: VlmSettings) -> LoadedModel:
    """Load the tiny model; `vlm.device` and `vlm.dtype` are read."""
    if quantisation(settings):
        raise InvalidSetting(f"vlm.dtype={settings.dtype} with the tiny model, which is 12 MB", remedy="leave it out")
    folder, device = shipped_folder(TINY_QWEN), pick_vlm_device(settings.device)
    config = _read(folder / "config.json")
    dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    network = Network(config)
    state = load_state_dict(folder / "model.safetensors")
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.language_model.embed_tokens.weight"]
    network.load_state_dict(state)
    network.to(device, dtype).requires_grad_(False).eval()
    tokenizer = Tokenizer(folder / "tokenizer.json")
    statistics = _read(folder / "processor_config.json").image_processor
    return LoadedModel(
        settings.model,
        network,
        tokenizer,
        Normalisation(tuple(statistics.image_mean), tuple(statistics.image_std)),
        device,
        dtype,
        limits=tokenizer.limits,
    )


class Tokenizer:
    """Subset of transformers' fast tokenizer that this package uses."""

    unk_token_id = None

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Backend

        self.backend_tokenizer = Backend.from_file(str(path))
        # User text is plain letters, even if it looks like a marker.
        self.backend_tokenizer.encode_special_tokens = True
        self.eos_token_id = self.convert_tokens_to_ids("<|im_end|>")

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": self.backend_tokenizer.encode(text, add_special_tokens=False).ids}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, name: str) -> int | None:
        return self.backend_tokenizer.token_to_id(name)

    def limits(self, question: str) -> str:
        """Describe the model's limits, and name up to three words of the question that it was not taught."""
        # Unknown words take several tokens.
        unknown = [word for word in dict.fromkeys(_WORD.findall(question)) if not self._knows(word)]
        return TINY_LIMITS + (f"; it was not taught {', '.join(map(repr, unknown[:3]))}" if unknown else "")

    def _knows(self, word: str) -> bool:
        forms = (f"{before}{form}" for form in (word, word.lower()) for before in (" ", ""))
        return any(len(self(form)["input_ids"]) == 1 for form in forms)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"), object_hook=lambda found: SimpleNamespace(**found))
