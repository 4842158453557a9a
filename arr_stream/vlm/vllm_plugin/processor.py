"""The vLLM processor for pictures that carry cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature
from vllm.model_executor.models.qwen3_vl import Qwen3VLMultiModalProcessor
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems
from vllm.multimodal.parse import ImageProcessorItems, MultiModalDataItems
from vllm.multimodal.processing import PromptReplacement, PromptUpdate

from arr_stream.vlm.qwen3_vl.carrier import CarriedCells, carried, carried_grid
from arr_stream.vlm.qwen3_vl.cells import POSITIONS_PER_TOKEN, block_extent, normalised, patch_pixels

CELLS = "sparse_cells"
"""`[K, 4]` int32: row, column, level of detail and quarter of each cell of a picture; empty for an ordinary one."""
COUNT = "sparse_count"
"""`[]` int64: K."""


class SparseProcessor(Qwen3VLMultiModalProcessor):
    """vLLM's processor, extended by cells."""

    def _get_mm_hashes(self, inputs: Any) -> Any:
        # The earliest hook that gets every picture of a request, cached ones included.
        self._check_positions(inputs.mm_data_items)
        return super()._get_mm_hashes(inputs)

    def _check_positions(self, items: MultiModalDataItems) -> None:
        """Check the positions of a request: a few cells of a large frame take as many positions as the whole frame."""
        if "image" not in items:
            return
        images = items.get_items("image", ImageProcessorItems) if _are_pictures(items) else ()
        grids = [carried_grid(image) for image in images]
        ahead = sum(block_extent(grid_hw) for grid_hw in grids if grid_hw is not None)
        context = int(self.info.ctx.model_config.max_model_len)
        if ahead > (POSITIONS_PER_TOKEN - 1) * context:
            raise ValueError(
                f"the cells of this request lead to position {ahead}, expected at most "
                f"{(POSITIONS_PER_TOKEN - 1) * context} with a context of {context} tokens: send fewer pictures"
            )

    def _apply_hf_processor_main(self, mm_items: MultiModalDataItems, hf_kwargs: Mapping[str, object]) -> BatchFeature:
        if "image" not in mm_items or not _are_pictures(mm_items):
            return super()._apply_hf_processor_main(mm_items, hf_kwargs)
        images = list(mm_items.get_items("image", ImageProcessorItems))
        found = [carried(image) for image in images]
        ordinary = [image for image, cells in zip(images, found, strict=True) if cells is None]
        others = {modality: items for modality, items in mm_items.items() if modality != "image"}
        if ordinary:
            others["image"] = ImageProcessorItems(ordinary)
        processed = super()._apply_hf_processor_main(MultiModalDataItems(others), hf_kwargs)
        processed.update(self._joined(found, processed))
        return processed

    def _joined(self, found: Sequence[CarriedCells | None], ordinary: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return all pictures of a request in order, with ordinary ones as vLLM processed them."""
        grids = list(ordinary.get("image_grid_thw", []))
        parts = list(ordinary["pixel_values"].split([int(grid.prod()) for grid in grids])) if grids else []
        pixels, grid_thw, cells = [], [], []
        for each in found:
            if each is None:
                pixels.append(parts.pop(0))
                grid_thw.append(grids.pop(0))
                cells.append(np.zeros((0, 4), np.int32))
            else:
                pixels.append(self._rows(each))
                rows, columns = each.cells.grid_hw
                grid_thw.append(torch.tensor([1, 2 * rows, 2 * columns]))
                cells.append(each.cells.table)
        return {
            "pixel_values": torch.cat(pixels),
            "image_grid_thw": torch.stack(grid_thw),
            CELLS: torch.from_numpy(np.concatenate(cells)),
            COUNT: torch.tensor([len(part) for part in cells]),
        }

    def _rows(self, cells: CarriedCells) -> torch.Tensor:
        """Return pixels `[4 K, 1536]` as the model expects them: bytes if it normalises them itself."""
        pictures = cells.pictures if cells.pictures.shape[1] == 2 else cells.pictures.repeat(2, axis=1)
        rows: np.ndarray[Any, Any] = np.ascontiguousarray(patch_pixels(pictures))
        if not self.info.ctx.get_mm_config().mm_device_do_normalize:
            image_processor = self.info.get_image_processor()
            rows = normalised(rows, image_processor.image_mean, image_processor.image_std)
        return torch.from_numpy(rows.reshape(4 * len(cells), -1))

    def _get_mm_fields_config(
        self, hf_inputs: BatchFeature, hf_processor_mm_kwargs: Mapping[str, object]
    ) -> Mapping[str, MultiModalFieldConfig]:
        fields = dict(super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs))
        if COUNT in hf_inputs:
            count = hf_inputs[COUNT]
            rows = torch.where(count > 0, 4 * count, hf_inputs["image_grid_thw"].prod(-1))
            fields["pixel_values"] = MultiModalFieldConfig.flat_from_sizes("image", rows)
            fields[CELLS] = MultiModalFieldConfig.flat_from_sizes("image", count, keep_on_cpu=True)
            fields[COUNT] = MultiModalFieldConfig.batched("image", keep_on_cpu=True)
        return fields

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, Any],
        out_mm_kwargs: MultiModalKwargsItems,
    ) -> Sequence[PromptUpdate]:
        updates = super()._get_prompt_updates(mm_items, hf_processor_mm_kwargs, out_mm_kwargs)
        token = self.info.get_hf_config().image_token_id

        def replaced(update: PromptUpdate) -> PromptUpdate:
            if update.modality != "image" or not isinstance(update, PromptReplacement):
                return update
            ordinary: Any = update.replacement

            def replacement(index: int) -> Any:
                item = out_mm_kwargs["image"][index]
                count = int(item[COUNT].data) if COUNT in item else 0
                return [token] * count if count else ordinary(index)

            return replace(update, replacement=replacement)

        return [replaced(update) for update in updates]


def _are_pictures(items: MultiModalDataItems) -> bool:
    return isinstance(items["image"], ImageProcessorItems)
