"""The plugin for lmms-eval, in the harness itself where that is installed: beside its own Qwen3-VL, on a drawn task."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from arr_stream.errors import BackendUnavailable
from arr_stream.evaluation.answers import WHOLE
from arr_stream.evaluation.lmms_eval import REMEDY, manifest
from tests.media import write_video
from tests.tiny_qwen import picture

ROOT = Path(__file__).resolve().parent.parent
MODEL = "arr_stream.evaluation.lmms_eval.model"
QUESTIONS = 4
CELLS = 8 * 14
QUICK = {"keyframes.text": "none", "keyframes.clusters": "grid", "dtype": "float32", "device": "cpu"}


def test_the_harness_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["lmms_eval.models"]["arr_stream"].partition(":")
    assert getattr(importlib.import_module(module), name) is manifest
    assert "lmms-eval" in project["optional-dependencies"]


def test_without_the_harness_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmms_eval", None)
    monkeypatch.delitem(sys.modules, MODEL, raising=False)
    with pytest.raises(BackendUnavailable, match="needs lmms_eval") as told:
        importlib.import_module(MODEL)
    assert told.value.remedy == REMEDY


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The harness's evaluator, with nobody to speak to."""
    for package in ("lmms_eval", "qwen_vl_utils", "decord"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: {REMEDY}")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(name, "1")
        patch.setenv("LMMS_EVAL_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        evaluator = importlib.import_module("lmms_eval.evaluator")
        registry = importlib.import_module("lmms_eval.models").MODEL_REGISTRY_V2
        # The environment may know an older arr-stream than the one that is tested.
        registry.register_manifest(manifest(), overwrite=True)
        yield evaluator


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the drawn task, and one about a video that the harness words for its own Qwen3-VL."""
    spec = importlib.util.spec_from_file_location("task", ROOT / "scripts" / "make_lmms_eval_task.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("task")
    script.make_task(folder, questions=QUESTIONS)
    lines = []
    for number in range(3):
        frames = [picture(288, 256, seed=10 * number + index // 5) for index in range(20)]
        clip = write_video(folder / f"{number}.mp4", frames, fps=10)
        lines.append(json.dumps({"video": str(clip), "question": "What is red?", "answer": "red"}))
    data = folder / "videos.jsonl"
    data.write_text("\n".join(lines) + "\n")
    (folder / "drawn_video.py").write_text(
        "def doc_to_visual(doc):\n    return [doc['video']]\n\n\n"
        "def doc_to_text(doc, lmms_eval_specific_kwargs=None):\n"
        "    return doc['question'] + lmms_eval_specific_kwargs['post_prompt']\n"
    )
    (folder / "drawn_video.yaml").write_text(
        "task: drawn_video\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {json.dumps(str(data))}}}}}\n"
        "test_split: test\noutput_type: generate_until\n"
        "doc_to_visual: !function drawn_video.doc_to_visual\ndoc_to_text: !function drawn_video.doc_to_text\n"
        "doc_to_target: answer\ngeneration_kwargs: {max_new_tokens: 8}\n"
        "lmms_eval_specific_kwargs:\n  default: {post_prompt: ' In a word.'}\n  qwen3_vl: {post_prompt: ' Say it.'}\n"
        "metric_list:\n  - {metric: exact_match, aggregation: mean, higher_is_better: true}\n"
    )
    return folder


@pytest.fixture(scope="module")
def stock_words(harness: ModuleType, task: Path, tiny_qwen: Path) -> dict[str, list[str]]:
    """What the harness's own Qwen3-VL answers to each task, in full precision."""
    return {name: _said(_evaluated(harness, task, name, _stock(tiny_qwen))) for name in ("drawn_shapes", "drawn_video")}


def _stock(folder: Path) -> Any:
    """The harness's own Qwen3-VL, with a video's frames in single markers as it was trained."""
    from lmms_eval.models.chat.qwen3_vl import Qwen3_VL
    from transformers import Qwen3VLForConditionalGeneration

    model = Qwen3_VL(pretrained=str(folder), device="cpu", device_map="cpu", max_num_frames=4)
    model._model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    templated = model._apply_chat_template

    def in_single_markers(messages: Any, **more: Any) -> list[str]:
        nested = "<|vision_start|><|video_pad|><|vision_end|>"
        return [text.replace(nested, "<|video_pad|>") for text in templated(messages, **more)]

    model._apply_chat_template = in_single_markers
    return model


def _evaluated(harness: ModuleType, task: Path, name: str, model: Any, **arguments: object) -> dict[str, Any]:
    """What the harness makes of a task: its samples, metrics and throughput."""
    from lmms_eval.tasks import TaskManager

    named = model if isinstance(model, str) else "qwen3_vl"
    if isinstance(model, str):
        arguments = QUICK | {"max_num_frames": 4} | arguments
        model = harness.models.get_model(model)(**arguments)
    manager = TaskManager("ERROR", include_path=str(task), include_defaults=False, model_name=named)
    found: dict[str, Any] = harness.simple_evaluate(model=model, tasks=[name], task_manager=manager, bootstrap_iters=0)
    return {"samples": found["samples"][name], **found.get("throughput", {})}


def _said(found: dict[str, Any]) -> list[str]:
    return [str(sample["filtered_resps"][0]) for sample in found["samples"]]


def _input_tokens(found: dict[str, Any]) -> list[int]:
    return [sample["token_counts"][0]["input_tokens"] for sample in found["samples"]]


@pytest.mark.parametrize("mode", ["sparse", "prune"])
def test_with_all_tokens_it_answers_what_the_harness_s_own_does(
    harness: ModuleType, task: Path, stock_words: dict[str, list[str]], tiny_qwen: Path, mode: str
) -> None:
    found = _evaluated(harness, task, "drawn_shapes", "arr_stream", pretrained=str(tiny_qwen), budget=WHOLE, mode=mode)
    assert _said(found) == stock_words["drawn_shapes"]
    assert len(set(_said(found))) > 1 and found["avg_visual_tokens"] == CELLS


def test_a_share_of_the_tokens_is_what_the_model_gets(harness: ModuleType, task: Path, tiny_qwen: Path) -> None:
    whole, part = (
        _evaluated(harness, task, "drawn_shapes", "arr_stream", pretrained=str(tiny_qwen), budget=budget)
        for budget in (WHOLE, "25%")
    )
    assert part["avg_visual_tokens"] == CELLS / 4
    spared = set(np.subtract(_input_tokens(whole), _input_tokens(part)).tolist())
    assert spared == {CELLS - CELLS // 4}
    assert _said(whole) != _said(part)


def test_of_a_video_it_sees_the_frames_that_the_harness_s_own_sees(
    harness: ModuleType, task: Path, stock_words: dict[str, list[str]], tiny_qwen: Path
) -> None:
    whole, part = (
        _evaluated(harness, task, "drawn_video", "arr_stream", pretrained=str(tiny_qwen), budget=budget)
        for budget in (WHOLE, "25%")
    )
    # Words of the harness for its own Qwen3-VL included.
    assert _said(whole) == stock_words["drawn_video"]
    assert len(set(_said(whole))) > 1
    # Four frames in two blocks, scaled up from 9x8 cells to the least that the harness's own shows.
    assert (whole["avg_visual_tokens"], part["avg_visual_tokens"]) == (2 * 14 * 15, 2 * round(14 * 15 / 4))
