"""vLLM's Qwen3-VL and Qwen3.5 with cells at their true positions in the vision tower and in the language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import MMEncoderAttention
from vllm.model_executor.models.qwen3_5 import (
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5MoeProcessingInfo,
    Qwen3_5ProcessingInfo,
)
from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessingInfo,
)
from vllm.model_executor.models.qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeProcessingInfo
from vllm.multimodal import MULTIMODAL_REGISTRY

from arr_stream.types import IntArray
from arr_stream.vlm.qwen3_vl.cells import (
    POSITIONS_PER_TOKEN,
    Cells,
    GridHW,
    block_extent,
    interpolation,
    patch_positions,
    text_positions,
    token_positions,
)
from arr_stream.vlm.vllm_plugin.processor import CELLS, COUNT, SparseProcessor

FRACTIONS = 4
"""Denominator of positions: coarse cells have positions at halves, quarters of cells at quarters."""


def _cells(grid_hw: GridHW, table: IntArray) -> Cells:
    """Return the cells of one picture, from the table of a request; the whole grid if the table is empty."""
    return Cells.of_table(grid_hw, table) if len(table) else Cells.whole(grid_hw)


@dataclass(frozen=True, slots=True, eq=False)
class _Carried:
    """Pictures of one pass, some of which carry cells: pixels `[4 sum K, 1536]`, and the places of the cells."""

    pixels: Tensor
    places: Sequence[Cells]


class _Sparse:
    """Mixin for vLLM's model classes; the first base of each."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        _refuse(vllm_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self._context = int(vllm_config.model_config.max_model_len)
        self._table_rows = POSITIONS_PER_TOKEN * self._context
        self._checked = False
        _enlarge_rotary_tables(self, self._table_rows)

    config: Any
    visual: Any

    def _parse_and_validate_image_input(self, **kwargs: Any) -> Any:
        count, table = kwargs.pop(COUNT, None), kwargs.pop(CELLS, None)
        parsed = super()._parse_and_validate_image_input(**kwargs)  # type: ignore[misc]
        if parsed is None or count is None or not bool((count > 0).any()):
            return parsed
        grids = [(h // 2, w // 2) for _, h, w in parsed["image_grid_thw"].tolist()]
        tables = table.cpu().split(count.tolist())
        places = [_cells(grid, each.numpy()) for grid, each in zip(grids, tables, strict=True)]
        return _Carried(parsed["pixel_values"], places)

    def _process_image_input(self, image_input: Any) -> Any:
        self._check_once()
        if not isinstance(image_input, _Carried):
            return super()._process_image_input(image_input)  # type: ignore[misc]
        places = image_input.places
        return torch.split(self._encoded(image_input.pixels, places), [len(each) for each in places])

    def _encoded(self, pixels: Tensor, places: Sequence[Cells]) -> Tensor:
        """Run the vision tower over the cells of several pictures, each separately; `[sum K, ...]`."""
        visual = self.visual
        positions = [patch_positions(each) for each in places]
        read = [
            interpolation(position, each.grid_hw, visual.num_grid_per_side)
            for position, each in zip(positions, places, strict=True)
        ]
        device = visual.device
        indices, weights = (torch.cat(part).to(device) for part in zip(*read, strict=True))
        # Corner by corner: all four at once would take several times the memory that vLLM has profiled for a picture.
        embedded = torch.zeros(len(indices), visual.hidden_size, device=device)
        for corner in range(4):
            embedded += visual.pos_embed.weight[indices[:, corner]].float() * weights[:, corner, None]
        cosine, sine = _rotation(visual.rotary_pos_emb, torch.cat(positions), visual)
        lengths = np.cumsum([0, *[4 * len(each) for each in places]], dtype=np.int32)
        backend = visual.attn_backend
        metadata = {
            "pos_embeds": embedded.to(visual.dtype),
            "rotary_pos_emb_cos": cosine,
            "rotary_pos_emb_sin": sine,
            "sequence_lengths": MMEncoderAttention.maybe_compute_seq_lens(backend, lengths, device),
            "max_seqlen": torch.tensor(MMEncoderAttention.compute_max_seqlen(backend, lengths), dtype=torch.int32),
            "cu_seqlens": MMEncoderAttention.maybe_recompute_cu_seqlens(
                backend,
                lengths,
                visual.hidden_size,
                visual.tp_size,
                device,
                fp8_padded_hidden_size=visual.fp8_padded_hidden_size,
            ),
        }
        encoded: Tensor = visual(pixels, None, encoder_metadata=metadata)
        return encoded

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
        """Return rows of the rotary tables, `[3, N]`, and the offset of the next token's position from its index."""
        config = self.config
        ids = (config.video_token_id, config.vision_start_token_id, config.vision_end_token_id)
        merge = config.vision_config.spatial_merge_size
        parts: list[Tensor] = []
        position, done = 0, 0

        def text(until: int) -> None:
            nonlocal position
            parts.append(text_positions(until - done, position))
            position += until - done

        for feature in sorted(mm_features, key=lambda feature: feature.mm_position.offset):
            count, table = _table_of(feature)
            for offset, rows, columns, tokens in self._iter_mm_grid_hw(input_tokens, [feature], *ids, merge):  # type: ignore[attr-defined]
                places = _cells((rows, columns), table)
                text(offset)
                parts.append(token_positions(places, position))
                position += block_extent((rows, columns))
                done = offset + (count or tokens)
        text(len(input_tokens))
        positions = torch.cat(parts, dim=1)
        whole = positions.floor()
        fraction = (FRACTIONS * (positions - whole)).round()
        # The processor refuses positions beyond the table, except for pictures that a client names without sending
        # them; those must not end the engine.
        rows = fraction * self._table_rows + whole.clamp(max=self._table_rows - 1)
        return rows.long(), min(position - len(input_tokens), self._table_rows - self._context - 1)

    def _check_once(self) -> None:
        """Compare cells that cover a whole picture with vLLM's own pass over it, once."""
        if self._checked:
            return
        self._checked = True
        visual = self.visual
        rows, columns = 3, 5
        size = 4 * rows * columns, visual.patch_embed.proj.weight[0].numel()
        pixels = (torch.arange(size[0] * size[1]) * 37 % 251).reshape(size).to(torch.uint8).to(visual.device)
        grid = torch.tensor([[1, 2 * rows, 2 * columns]])
        expected = visual(pixels, grid_thw=grid).float()
        found = self._encoded(pixels, [Cells.whole((rows, columns))]).float()
        difference = float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-6))
        allowed = {torch.float32: 1e-4}.get(visual.dtype, 0.05)
        if not difference <= allowed:
            raise RuntimeError(
                f"arr-stream: cells and the whole picture differ by {difference:.2g}, expected at most {allowed:.2g}: "
                "this release of vLLM is built otherwise than those that were tried"
            )


@MULTIMODAL_REGISTRY.register_processor(
    SparseProcessor, info=Qwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class SparseQwen3VL(_Sparse, Qwen3VLForConditionalGeneration):
    """`Qwen3VLForConditionalGeneration` with cells."""


@MULTIMODAL_REGISTRY.register_processor(
    SparseProcessor, info=Qwen3VLMoeProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class SparseQwen3VLMoe(_Sparse, Qwen3VLMoeForConditionalGeneration):
    """`Qwen3VLMoeForConditionalGeneration` with cells."""


@MULTIMODAL_REGISTRY.register_processor(
    SparseProcessor, info=Qwen3_5ProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class SparseQwen3_5(_Sparse, Qwen3_5ForConditionalGeneration):
    """`Qwen3_5ForConditionalGeneration` (Qwen3.5 and 3.6) with cells."""


@MULTIMODAL_REGISTRY.register_processor(
    SparseProcessor, info=Qwen3_5MoeProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class SparseQwen3_5Moe(_Sparse, Qwen3_5MoeForConditionalGeneration):
    """`Qwen3_5MoeForConditionalGeneration` with cells."""


def _refuse(config: VllmConfig) -> None:
    """Refuse server options that would feed the model past this code."""
    multimodal = config.model_config.get_multimodal_config()
    if multimodal.mm_encoder_tp_mode == "data":
        raise ValueError("arr-stream: mm_encoder_tp_mode=data shards by whole pictures: leave it at weights")
    if multimodal.is_multimodal_pruning_enabled():
        raise ValueError("arr-stream: cells are chosen before the server: leave video pruning off")
    if config.speculative_config is not None:
        raise ValueError("arr-stream: a drafter does not know the places of cells: leave speculative decoding off")
    text = config.model_config.hf_config.text_config
    if (getattr(text, "rope_parameters", None) or {}).get("rope_type", "default") != "default":
        raise ValueError("arr-stream: places between cells are made of plain rotary tables: leave rope scaling off")
    if config.compilation_config.cudagraph_mm_encoder:
        raise ValueError("arr-stream: cudagraph_mm_encoder captures whole pictures: leave it off")


def _enlarge_rotary_tables(model: Any, rows: int) -> None:
    """Extend the rotary tables to `rows` whole positions, followed by as many rows for each fraction."""
    for rotary in {id(module): module for module in model.modules() if hasattr(module, "mrope_section")}.values():
        before = rotary.cos_sin_cache
        rotary.cache_max_position_num = rotary.max_position_embeddings = rows
        whole = rotary._compute_cos_sin_cache().to(before.device)
        known = min(len(before), rows)
        if not torch.equal(whole[:known].to(before.dtype), before[:known]):
            raise RuntimeError("arr-stream: rotary tables are computed otherwise than in the releases that were tried")
        frequency = rotary._compute_inv_freq(rotary.base).to(before.device)
        cosine, sine = whole.chunk(2, dim=-1)
        table = []
        for number in range(FRACTIONS):
            angle = frequency * (number / FRACTIONS)
            c, s = angle.cos(), angle.sin()
            table.append(torch.cat([cosine * c - sine * s, sine * c + cosine * s], dim=-1))
        rotary.cos_sin_cache = torch.cat(table).to(before.dtype)


def _rotation(rotary: Any, positions: Tensor, visual: Any) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of patches, `[N, d]` each, from their rows and columns, which may be fractions."""
    frequency = rotary._compute_inv_freq(rotary.base)
    angles = (positions[:, :, None] * frequency).flatten(1).to(visual.device)
    dtype = rotary.cos_sin_cache.dtype
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _table_of(feature: Any) -> tuple[int, IntArray]:
    """Return the number of cells that a picture of a request carries, and their table."""
    if feature.modality != "image" or COUNT not in feature.data:
        return 0, np.zeros((0, 4), np.int32)
    return int(feature.data[COUNT].data), feature.data[CELLS].data.numpy()
