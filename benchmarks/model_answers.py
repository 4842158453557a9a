"""A Qwen3-VL as the one who answers picture questions, each from an empty memory."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from arr_stream.config import Settings
from arr_stream.selection.allocation import Allocation
from arr_stream.types import ByteArray, Grid
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells, texture_picture
from arr_stream.vlm.qwen3_vl.decoding import Sampler, likelihoods, respond
from arr_stream.vlm.qwen3_vl.encoding import Feeder
from arr_stream.vlm.qwen3_vl.loading import LoadedModel, load
from arr_stream.vlm.qwen3_vl.memory import FrameEntry, Memory
from arr_stream.vlm.qwen3_vl.prompt import Prompt
from benchmarks.questions import Mode, Reply

ANSWER_TOKENS = 12


class ModelAnswerer:
    """Shows a model the cells of one picture and asks once.

    Args:
        loaded: The model.
        halo: Width of the ring of `halo`, in cells.
        instruction: What the model is told before anything else.

    Raises:
        ModelUnsupported: This transformers builds the model otherwise than expected.
    """

    def __init__(self, loaded: LoadedModel, *, halo: int = 1, instruction: str = "") -> None:
        self.name = loaded.name
        self._adapter = Adapter(loaded.model)
        self._adapter.check()
        self._prompt = Prompt(loaded.tokenizer, self._adapter.config)
        self._normalisation = loaded.normalisation
        self._halo = halo
        self._instruction = instruction

    @torch.inference_mode()
    def answer(
        self, rgb: ByteArray, grid: Grid, cells: Allocation, mode: Mode, question: str, options: Sequence[str]
    ) -> Reply:
        """See `Answerer`. The likelihood of an option is that of its tokens and of the answer's end after them."""
        started = time.perf_counter()
        feeder = Feeder(self._adapter, self._normalisation, mode, self._halo)
        picture = texture_picture(rgb, grid.texture_wh)
        chosen = Cells.allocated(cells, grid)
        memory = Memory(self._adapter, self._prompt, self._instruction)
        memory.append([FrameEntry(feeder.feed(picture, picture, chosen, sources=(rgb, rgb)), grid, 0, 0.0, "image")])
        asked = self._prompt.question(question)
        sampler = Sampler(temperature=0.0)
        said = respond(memory, asked, most_tokens=ANSWER_TOKENS, sampler=sampler)
        milliseconds = (time.perf_counter() - started) * 1e3
        scores = likelihoods(memory, asked, [self._prompt.text(option) for option in options])
        return Reply(said.text.strip(), tuple(each.log for each in scores), milliseconds)


def model_answerer(settings: Settings) -> ModelAnswerer:
    """The model of `vlm.model`.

    Raises:
        ArrStreamError: It cannot be had.
    """
    loaded = load(settings.vlm, settings.models)
    return ModelAnswerer(loaded, halo=settings.vlm.halo, instruction=settings.vlm.instruction)
