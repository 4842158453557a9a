"""Qwen3-VL with a share of the cells, as a model of lmms-eval 0.7.

    lmms-eval eval --model arr_stream --model_args pretrained=Qwen/Qwen3-VL-4B-Instruct,budget=25% --tasks textvqa_val

Pictures and frames are fetched, sampled and scaled as for the harness's own `qwen3_vl`, with the same prompts. With all
tokens there is no selection, and the answers equal those of `qwen3_vl`. (Except for videos under the versions of
transformers whose processor puts a second pair of markers around all frames, which the model has never seen.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from arr_stream.budget import budget_tokens
from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, ContextExceeded, InvalidSetting, NotAMediaFile
from arr_stream.evaluation.lmms_eval import REMEDY
from arr_stream.keyframes.generate import InStepKeyframes
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import TextQuery, parse_text
from arr_stream.relevance.question import sought
from arr_stream.stream import Models
from arr_stream.types import ByteArray, FloatArray, Frame, Grid
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import PATCH_PX, Cells, merged
from arr_stream.vlm.qwen3_vl.decoding import respond
from arr_stream.vlm.qwen3_vl.encoding import Feeder
from arr_stream.vlm.qwen3_vl.entries import Entry, FrameEntry, TextEntry
from arr_stream.vlm.qwen3_vl.loading import load
from arr_stream.vlm.qwen3_vl.memory import Memory
from arr_stream.vlm.qwen3_vl.prompt import Media, Prompt

try:
    from lmms_eval.api.instance import GenerationResult, TokenCounts
    from lmms_eval.api.model import lmms
    from lmms_eval.models.model_utils.gen_metrics import log_metrics
    from lmms_eval.protocol import ChatMessages
    from qwen_vl_utils import fetch_image, fetch_video
    from tqdm import tqdm
except ImportError as exc:
    raise BackendUnavailable(f"the model for lmms-eval needs {exc.name}", remedy=REMEDY) from exc

STOCK = "qwen3_vl"
"""The harness's name for the same model with all tokens."""
ANSWER_TOKENS = 128
LONGEST_QUERY = 2000
_NOTHING = ("", "none")


class ChatModel(lmms):  # type: ignore[misc]
    """Model for tasks in chat messages: all that are answered in words.

    Args:
        pretrained: As `vlm.model`.
        budget: As `selection.budget`: a share of the tokens of each picture or frame, or a number.
        mode: As `vlm.mode`.
        query: Field of a task's documents with the query; if a document lacks it, the query comes from the whole
            prompt.
            `none`: no query.
        device: Such as `cuda:0`, or `cpu`.
        dtype: As `vlm.dtype`; the default is the harness's.
        batch_size: 1: questions are asked one by one.
        min_pixels, max_pixels, total_pixels, max_num_frames, fps, system_prompt: As for the harness's own.
        preset: Settings from a TOML file, or the name of one that comes with arr-stream.
        settings: Any others, such as `keyframes.text=none`.

    Raises:
        ArrStreamError: The model is unavailable, or a setting is wrong.
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str,
        budget: str | int = "25%",
        mode: str = "sparse",
        query: str = "question",
        device: str | None = None,
        dtype: str = "bfloat16",
        batch_size: int | str = 1,
        min_pixels: int = 256 * 28 * 28,
        max_pixels: int = 1605632,
        total_pixels: int | None = None,
        max_num_frames: int = 32,
        fps: float | None = None,
        system_prompt: str = "You are a helpful assistant.",
        preset: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if int(batch_size) != 1:
            raise InvalidSetting(f"batch_size={batch_size}: questions are asked one by one", remedy="leave it at 1")
        given = {
            "vlm.model": pretrained,
            "vlm.mode": mode,
            "vlm.device": _device(device),
            "vlm.dtype": dtype,
            "vlm.instruction": system_prompt,
            "vlm.context_tokens": 32768,
            "selection.budget": str(budget),
            # The harness sets the sizes, and its frames are seconds apart.
            "grid.max_pixels": 1 << 40,
            "keyframes.interval": 1,
        }
        self._settings = Settings.load(preset).with_values(given | settings)
        self._query = query
        video = {
            "min_pixels": min_pixels,
            "max_pixels": max_pixels if total_pixels is None else None,
            "total_pixels": total_pixels,
            "fps": fps,
            "nframes" if fps is None and total_pixels is None else "max_frames": max_num_frames,
        }
        self._video = {name: value for name, value in video.items() if value is not None}
        self._models = Models.load(self._settings)
        loaded = load(self._settings.vlm, self._settings.models)
        self._adapter = Adapter(loaded.model)
        self.device = self._adapter.device  # The harness reads the device of each process here.
        self._prompt = Prompt(loaded.tokenizer, loaded.model.config)
        self._feeder = Feeder(self._adapter, loaded.normalisation, self._settings.vlm.mode)

    @torch.inference_mode()
    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """Return an answer to each request."""
        results, written, elapsed, seen = [], 0, 0.0, 0
        for request in tqdm(requests, disable=self.rank != 0, desc="Model Responding"):
            _, doc_to_messages, generation, number, task, split = request.args
            if generation.get("temperature"):
                raise InvalidSetting(f"{task}: answers are not sampled", remedy="--gen_kwargs temperature=0")
            document = self.task_dict[task][split][number]
            messages = _worded_for_qwen(doc_to_messages)(document)
            started = time.perf_counter()
            memory, question = self._look(messages, document)
            response = respond(memory, question, most_tokens=generation.get("max_new_tokens", ANSWER_TOKENS))
            elapsed += time.perf_counter() - started
            written, seen = written + len(response.ids), seen + memory.visual_tokens
            tokens = TokenCounts(input_tokens=memory.tokens + len(question), output_tokens=len(response.ids))
            said = self._prompt.tokenizer.decode(response.ids, skip_special_tokens=True)
            results.append(GenerationResult(text=said, token_counts=tokens))
        log_metrics(elapsed, written, written / max(elapsed, 1e-9), {"visual_tokens": seen / max(1, len(results))})
        return results

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[Any]:
        """Refuse: the harness's own Qwen3-VL does not support several rounds either."""
        raise NotImplementedError("arr_stream answers one question, not several in turn")

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Refuse, as the harness's own Qwen3-VL does."""
        raise NotImplementedError("arr_stream answers in words: choose tasks that generate text")

    def clean(self) -> None:
        """Free the model: the scorer of its answers may need the memory."""
        del self._adapter, self._feeder, self._models
        super().clean()

    def _look(self, messages: list[dict[str, Any]], document: Mapping[str, Any]) -> tuple[Memory, list[int]]:
        """Return the memory with everything before the question, and the question: the text after the last picture."""
        instructions, contents = [self._settings.vlm.instruction], []
        for message in ChatMessages(messages=messages).to_hf_messages(video_kwargs=self._video):
            if message["role"] == "assistant":
                raise InvalidSetting("a task with answers of others in its messages", remedy="leave out few-shot tasks")
            if message["role"] == "system":
                instructions += [content["text"] for content in message["content"]]
            else:
                contents += message["content"]
        text = "".join(content["text"] for content in contents if content["type"] == "text")
        queries, entries, unread = self._queries(document, text), list[Entry](), ""
        for content in contents:
            if content["type"] == "text":
                unread += content["text"]
                continue
            if unread:
                entries.append(TextEntry(tuple(self._prompt.text(unread))))
            unread = ""
            entries += self._blocks(*_frames(content), queries)
        memory = Memory(self._adapter, self._prompt, "\n".join(filter(None, instructions)))
        question = self._prompt.question(unread)
        needed, most = memory.cost(entries) + len(question), self._settings.vlm.context_tokens
        if needed > most:
            raise ContextExceeded(f"{needed} tokens, at most {most} are held", remedy="raise vlm.context_tokens")
        memory.append(entries)
        return memory, question

    def _queries(self, document: Mapping[str, Any], prompt: str) -> list[TextQuery]:
        """Return the queries."""
        if self._query in _NOTHING:
            return []
        named = document.get(self._query)
        texts = (named,) if isinstance(named, str) else sought(prompt)
        return [parse_text(text[:LONGEST_QUERY]) for text in texts if text.strip()]

    def _blocks(
        self, media: Media, frames: Sequence[ByteArray], seconds: Sequence[float], queries: Sequence[TextQuery]
    ) -> Iterator[Entry]:
        """Yield the blocks of chosen cells of a picture, or of a video's frames in pairs."""
        grid = Grid.for_size((frames[0].shape[1], frames[0].shape[0]))
        chosen = list(self._chosen(frames, seconds, grid, queries))
        step = 2 if media == "video" else 1
        for at in range(0, len(frames), step):
            first, last = at, min(at + step, len(frames)) - 1
            pair = [chosen[index][0] for index in range(first, last + 1)]
            cells = merged(pair).best(max(map(len, pair)))
            relevance = np.maximum(chosen[first][1], chosen[last][1])
            block = self._feeder.feed(frames[first], frames[last], cells, relevance)
            yield FrameEntry(block, grid, last, (seconds[first] + seconds[last]) / 2, media)

    def _chosen(
        self, frames: Sequence[ByteArray], seconds: Sequence[float], grid: Grid, queries: Sequence[TextQuery]
    ) -> Iterator[tuple[Cells, FloatArray]]:
        """Yield the cells and the relevance of each frame; with all tokens there is no selection."""
        whole = budget_tokens(self._settings.selection.budget, grid.cells) == grid.cells
        if whole and self._settings.vlm.mode != "weight":
            cells = Cells.whole((grid.rows, grid.columns))
            yield from [(cells, np.ones((grid.rows, grid.columns), np.float32))] * len(frames)
            return
        keyframes, encoder, pca = InStepKeyframes(self._models.generator), self._models.encoder, self._models.pca
        pipeline = Pipeline(self._settings, keyframes, queries, encoder=encoder, pca=pca)
        for index, (rgb, at) in enumerate(zip(frames, seconds, strict=True)):
            patches = pipeline.step(Frame(index, at, rgb))
            yield Cells.chosen(patches), patches.relevance


def _device(device: str | None) -> str:
    """Return the setting for the harness's device name; with several GPUs each process takes its own."""
    kind, _, index = (device or "auto").partition(":")
    index = os.environ.get("LOCAL_RANK", index)
    if kind != "cpu" and index and torch.cuda.is_available():
        torch.cuda.set_device(int(index))
    return kind


def _worded_for_qwen(doc_to_messages: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Use the harness's prompts for its own Qwen3-VL, since some tasks have one for each model name."""
    task = getattr(doc_to_messages, "__self__", None)
    words = getattr(task, "lmms_eval_specific_kwargs", None)
    if task is not None and isinstance(words, Mapping) and STOCK in words:
        task.lmms_eval_specific_kwargs = words[STOCK]
    return doc_to_messages


def _frames(content: Mapping[str, Any]) -> tuple[Media, list[ByteArray], list[float]]:
    """Return a picture, or the frames of a video with their times, fetched as for the harness's own Qwen3-VL.

    Raises:
        InvalidSetting: Neither.
        NotAMediaFile: A video that cannot be read.
    """
    if content["type"] == "image":
        return "image", [np.ascontiguousarray(fetch_image(content, image_patch_size=PATCH_PX))], [0.0]
    if content["type"] != "video":
        raise InvalidSetting(f"a task with {content['type']}", remedy="choose tasks with pictures or videos")
    try:
        video, told = fetch_video(content, image_patch_size=PATCH_PX, return_video_metadata=True)
    except Exception as exc:  # It tries several readers and raises the last one's error.
        raise NotAMediaFile(
            f"{content['video']}: qwen-vl-utils cannot read it: {exc}",
            remedy="give fps=2 if the video has fewer frames than max_num_frames",
        ) from exc
    # [T, 3, H, W] float of whole numbers
    frames = video.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    return "video", list(frames), [float(index) / float(told["fps"]) for index in told["frames_indices"]]
