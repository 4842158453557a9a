"""The same tokens twice: through transformers' own forward pass, and through the product.

The stock side takes what the processor makes and never calls the product. Cells are left out there by masks: of the
language model's attention (4-D, with the positions of the full prompt), and of the keys in every block of the vision
tower (an attention function of our own, registered with transformers). A recurrent layer has no mask: it is given the
embeddings and positions of the others alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from arr_stream.config import Settings
from arr_stream.patch_set import PatchSet
from arr_stream.types import ByteArray, Frame, Grid
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells, Normalisation, texture_picture
from arr_stream.vlm.qwen3_vl.encoding import Block, Feeder, Mode
from arr_stream.vlm.qwen3_vl.entries import Entry, FrameEntry
from arr_stream.vlm.qwen3_vl.families import FAMILIES
from arr_stream.vlm.qwen3_vl.loading import LoadedModel
from arr_stream.vlm.qwen3_vl.memory import Memory
from arr_stream.vlm.qwen3_vl.prompt import Media, Prompt
from arr_stream.vlm.qwen3_vl.session import QwenSession
from tests.choices import choose

QUESTION = "Where is the red car?"
HALF = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
EXACT = 1e-5
"""Largest absolute difference of logits; of the tiny model they have a standard deviation of about 1."""
EXACT_RECURRENT = 5e-5
"""The same with recurrent layers, which add up in another order where the passes are others."""


def loaded_of(model: Any, processor: Any) -> LoadedModel:
    """What the viewer takes."""
    return LoadedModel("tiny", model, processor.tokenizer, HALF, torch.device("cpu"), torch.float32)


def session_of(model: Any, processor: Any, **vlm: Any) -> QwenSession:
    """A viewer with settings of its section, `novelty`, and attributes."""
    novelty, own = (
        vlm.pop("novelty", "skip"),
        {name for name in ("kept_share", "half_life_seconds", "fills") if name in vlm},
    )
    attributes = {"fills": False} | {name: vlm.pop(name) for name in own}
    settings = {"vlm": {"media": "image", "answer_tokens": 6, **vlm}, "selection": {"novelty": novelty}}
    session = QwenSession(loaded_of(model, processor), Settings.checked(settings))
    for name, value in attributes.items():
        setattr(session, name, value)
    return session


def patches_of(frame: Frame, cells: Cells | None = None, **changes: Any) -> PatchSet:
    """A patch set of these cells, of all if not given; no keyframe unless asked for."""
    grid = Grid.for_size(frame.size_wh)
    chosen = Cells.whole((grid.rows, grid.columns)) if cells is None else cells
    count, quiet = len(chosen), {"keyframe": frame.index == 0, "refresh_reason": None if frame.index else "first"}
    fields = {
        "rows": chosen.rows,
        "columns": chosen.columns,
        "level": chosen.level,
        "score": chosen.score,
        "scorer": np.zeros(count, np.int32),
        "query": np.zeros(count, np.int32),
        "carried": np.zeros(count, bool),
        "fresh": np.ones(count, bool),
    }
    return choose(frame, **(fields | quiet | changes))


@dataclass(frozen=True)
class Run:
    """`[N, vocabulary]` logits and, for each layer with attention, `[heads, N, d]` keys."""

    logits: Tensor
    keys: tuple[Tensor, ...]
    exact: float

    def equals(self, other: Run) -> bool:
        """Return whether logits differ by at most `exact`, and keys by as much in proportion to their length."""
        assert self.logits.shape == other.logits.shape
        for mine, theirs in zip(self.keys, other.keys, strict=True):
            common = min(mine.shape[1], theirs.shape[1])
            torch.testing.assert_close(mine[:, :common], theirs[:, :common], rtol=self.exact, atol=2 * self.exact)
        return float((self.logits - other.logits).abs().max()) <= self.exact

    def select(self, keep: Tensor) -> Run:
        return Run(self.logits[keep], tuple(keys[:, keep] for keys in self.keys), self.exact)


# ---- the stock side


def image_inputs(processor: Any, pictures: Sequence[ByteArray], question: str = QUESTION) -> dict[str, Tensor]:
    """What the processor makes of pictures and a question."""
    content = [*[{"type": "image"}] * len(pictures), {"type": "text", "text": question}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    return dict(processor(text=[text], images=list(pictures), return_tensors="pt"))


def video_inputs(processor: Any, frames: ByteArray, fps: float, question: str = QUESTION) -> dict[str, Tensor]:
    """What the processor makes of `[T, H, W, 3]`, but for the second pair of markers that it puts around all frames."""
    content = [{"type": "video"}, {"type": "text", "text": question}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    count = len(frames)
    metadata = {"fps": fps, "total_num_frames": count, "frames_indices": list(range(count))}
    made = processor(text=[text], videos=[frames], video_metadata=[metadata], do_sample_frames=False)
    shown = processor.decode(made["input_ids"][0])
    nested = "<|im_start|>user\n<|vision_start|><", f"<|vision_end|><|vision_end|>{question}"
    if all(part in shown for part in nested):
        shown = shown.replace(nested[0], "<|im_start|>user\n<").replace(nested[1], f"<|vision_end|>{question}")
    ids = torch.tensor([processor.tokenizer(shown)["input_ids"]])
    return {
        "input_ids": ids,
        "mm_token_type_ids": 2 * (ids == processor.tokenizer.convert_tokens_to_ids("<|video_pad|>")).int(),
        "pixel_values_videos": torch.as_tensor(made["pixel_values_videos"]),
        "video_grid_thw": torch.as_tensor(made["video_grid_thw"]),
    }


@torch.inference_mode()
def stock_run(model: Any, inputs: dict[str, Tensor], bias: Tensor | None = None) -> Run:
    """One pass over the whole prompt; `bias` `[N]` is added to the attention to each token, -inf hides it."""
    model.model.rope_deltas = None
    given = {name: value for name, value in inputs.items() if name != "attention_mask"}
    if bias is not None:
        grids = {name: inputs[name] for name in ("image_grid_thw", "video_grid_thw") if name in inputs}
        given["position_ids"], _ = model.model.get_rope_index(inputs["input_ids"], inputs["mm_token_type_ids"], **grids)
        count = len(bias)
        mask = torch.full((count, count), -torch.inf).triu(1) + bias
        given["attention_mask"] = mask.clamp(min=torch.finfo(torch.float32).min)[None, None]
    return _run_of(model, model(**given, use_cache=True))


@torch.inference_mode()
def stock_run_without(model: Any, inputs: dict[str, Tensor], hidden: Tensor) -> Run:
    """One pass over the prompt without the tokens that are True in `[N]`, the others at their places."""
    if not recurrent(model):
        return stock_run(model, inputs, torch.where(hidden, -torch.inf, 0.0)).select(~hidden)
    kind = "video" if "video_grid_thw" in inputs else "image"
    ids, grid = inputs["input_ids"], inputs[f"{kind}_grid_thw"]
    pixels = inputs["pixel_values_videos" if kind == "video" else "pixel_values"]
    positions, _ = model.model.get_rope_index(ids, inputs["mm_token_type_ids"], **{f"{kind}_grid_thw": grid})
    embeddings = model.get_input_embeddings()(ids)
    embeddings[:, visual(inputs)] = torch.cat(list(model.model.get_image_features(pixels, grid).pooler_output))
    given = {"inputs_embeds": embeddings[:, ~hidden], "position_ids": positions[:, :, ~hidden]}
    return _run_of(model, model(**given, use_cache=True))


def recurrent(model: Any) -> bool:
    return FAMILIES[model.config.model_type].recurrent


def skip_if_refused(model: Any, mode: str = "weight") -> None:
    if mode == "weight" and recurrent(model):
        pytest.skip("attention cannot be biased, see test_what_needs_biased_attention_is_refused")


def exact(model: Any) -> float:
    """Return the tolerance for a model or an adapter."""
    return EXACT_RECURRENT if recurrent(model) else EXACT


def _run_of(model: Any, output: Any) -> Run:
    groups = model.config.text_config.num_attention_heads // model.config.text_config.num_key_value_heads
    layers = [layer for layer in output.past_key_values.layers if hasattr(layer, "keys")]
    keys = tuple(layer.keys[0].repeat_interleave(groups, dim=0) for layer in layers)
    return Run(output.logits[0], keys, exact(model))


def stock_answer(model: Any, inputs: dict[str, Tensor], tokens: int) -> list[int]:
    """Greedy, by `generate`, with the token that ends it if one did."""
    model.model.rope_deltas = None
    made = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    answer: list[int] = made[0, inputs["input_ids"].shape[1] :].tolist()
    return answer


def visual(inputs: dict[str, Tensor]) -> Tensor:
    """`[N]` bool: which tokens are cells."""
    return inputs["mm_token_type_ids"][0] > 0


def left_out(inputs: dict[str, Tensor], cells: Sequence[Cells]) -> Tensor:
    """`[N]` bool: the cells of each frame in turn that are not among the chosen."""
    hidden = torch.zeros(inputs["input_ids"].shape[1], dtype=torch.bool)
    hidden[visual(inputs)] = ~torch.cat([torch.from_numpy(shown(part).reshape(-1)) for part in cells])
    return hidden


def shown(cells: Cells) -> np.ndarray[Any, Any]:
    """`[gh, gw]` bool: where fine cells are."""
    mask = np.zeros(cells.grid_hw, bool)
    mask[cells.rows, cells.columns] = True
    return mask


@contextmanager
def hidden_patches(model: Any, seen: Sequence[np.ndarray[Any, Any]]) -> Iterator[None]:
    """Patches of cells that are False in `[gh, gw]`, a mask for each frame, are no keys in any vision block."""
    masks = [torch.from_numpy(mask.reshape(-1)).repeat_interleave(4) for mask in seen]
    calls = 0

    def attend(_module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **kwargs: Any) -> tuple[Tensor, None]:
        nonlocal calls
        mask = masks[calls % len(masks)]
        calls += 1
        scores = (query @ key.transpose(2, 3) * kwargs["scaling"]).masked_fill(~mask, -torch.inf)
        return (scores.softmax(dim=-1) @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("hidden_patches", attend)
    config = model.model.visual.config
    before, config._attn_implementation = config._attn_implementation, "hidden_patches"
    try:
        yield
    finally:
        config._attn_implementation = before
    assert calls == len(masks) * len(model.model.visual.blocks)


# ---- our side


class Watched(Adapter):
    """Remembers the hidden states of every pass of the language model."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.hidden: list[Tensor] = []

    def extend(self, *args: Any, **kwargs: Any) -> Tensor:
        hidden = super().extend(*args, **kwargs)
        self.hidden.append(hidden)
        return hidden


@dataclass(frozen=True)
class Bench:
    """The product's parts over one model."""

    adapter: Watched
    prompt: Prompt

    @classmethod
    def of(cls, model: Any, processor: Any) -> Bench:
        return cls(Watched(model), Prompt(processor.tokenizer, model.config))

    @property
    def exact(self) -> float:
        return exact(self.adapter)

    def feeder(self, mode: Mode) -> Feeder:
        return Feeder(self.adapter, HALF, mode)

    def block(self, mode: Mode, first: ByteArray, second: ByteArray, cells: Cells | None = None, **feed: Any) -> Block:
        """Chosen cells (all if not given) of a pair of frames of any size."""
        grid = Grid.for_size((first.shape[1], first.shape[0]))
        chosen = Cells.whole((grid.rows, grid.columns)) if cells is None else cells
        one = texture_picture(first, grid.texture_wh)
        other = one if second is first else texture_picture(second, grid.texture_wh)
        return self.feeder(mode).feed(one, other, chosen, feed.get("relevance"))

    def memory(self) -> Memory:
        return Memory(self.adapter, self.prompt)

    def run(self, entries: Sequence[Entry], question: str = QUESTION, *, piecewise: bool = False) -> Run:
        """Everything, then the question: in two passes, or in one for each entry."""
        memory = self.memory()
        self.adapter.hidden.clear()
        for part in [[entry] for entry in entries] if piecewise else [entries]:
            memory.append(part)
        return self.ask(memory, question)

    @torch.inference_mode()
    def ask(self, memory: Memory, question: str = QUESTION) -> Run:
        """The question on top, rolled back; logits of all that ran since `hidden` was last cleared."""
        with memory.kept():
            memory.read(self.prompt.question(question), memory.position)
            keys = tuple(memory.keys(layer).clone() for layer in self.adapter.attention_layers)
        run = Run(self.adapter.logits(torch.cat(self.adapter.hidden)), keys, self.exact)
        self.adapter.hidden.clear()
        return run


def seen(block: Block, seconds: float = 0.0, media: Media = "image", index: int = 0) -> FrameEntry:
    """A block in the memory."""
    grid = Grid((block.cells.grid_hw[1] * 32, block.cells.grid_hw[0] * 32), *block.cells.grid_hw)
    return FrameEntry(block, grid, index, seconds, media)


def some_cells(grid_hw: tuple[int, int], count: int, seed: int = 0) -> Cells:
    """Fine cells at random places, with random scores."""
    draw = np.random.default_rng(seed)
    places = draw.permutation(grid_hw[0] * grid_hw[1])[:count]
    rows, columns = (axis.astype(np.int32) for axis in np.unravel_index(places, grid_hw))
    return Cells(grid_hw, rows, columns, np.zeros(count, np.int32), draw.random(count, np.float32))
