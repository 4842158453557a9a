"""open_clip models from files on disk, without downloads and without unpickling.

open_clip's own factory downloads missing files, so only its architectures, conversions and tokenisers are used here.
`clip.model` may be:

| setting | architecture | weights |
|---|---|---|
| `tiny` | the encoder inside the package, which runs without open_clip | likewise |
| `NAME:PRETRAINED`, such as `ViT-B-16:openai` | open_clip's | from the models folder |
| `NAME:FILE` | open_clip's | the file |
| a folder in the form of open_clip's `local-dir:` | its `open_clip_config.json` | its weights file |
| a file in such a folder | likewise | the file |

A folder's configuration may hold `prompt_templates`, a list of texts with one `{}` each; without them, a text is
encoded in a few caption-like phrases, and their mean is taken (Radford et al., 2021).
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arr_stream import weights
from arr_stream.config import TINY, ClipSettings, ModelSettings
from arr_stream.errors import BackendUnavailable, InvalidSetting, WeightsInvalid
from arr_stream.extras import need
from arr_stream.files import expanded
from arr_stream.keyframes.embeddings.plain_clip import PlainClip, byte_pairs
from arr_stream.weights.catalogue import HUB_WEIGHTS, weights_in
from arr_stream.weights.loading import first_line

CONFIG_NAME = "open_clip_config.json"
PLAIN = ("{}",)
CAPTIONS = ("{}.", "a photo of {}.", "a picture showing {}.", "a frame of a video with {}.")
_OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
_OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """Tokeniser: a text to all its tokens, start and end included; texts to `[N, context_length]`, cut and padded."""

    encode: Callable[[str], list[int]]
    batch: Callable[[list[str]], Tensor]


@dataclass(frozen=True, slots=True)
class Plan:
    """Resolved value of `clip.model`.

    Args:
        config: open_clip's model configuration.
        file: The weights.
        space: Names model and weights; features of one space can be compared.
        mean, std: Normalisation of pixels in [0, 1].
        templates: Phrases that a text is inserted into.
    """

    config: dict[str, Any]
    file: Path
    space: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    templates: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedClip:
    """Dual encoder in evaluation mode on the CPU, in float32; its `visual` is the vision tower."""

    plan: Plan
    model: Any


def load_clip(settings: ClipSettings, models: ModelSettings) -> LoadedClip:
    """Load the model that `clip.model` names.

    Raises:
        BackendUnavailable: open_clip or the weights are missing.
        InvalidSetting: No such architecture or weights; names the nearest. A folder that holds no model.
        WeightsInvalid: Damaged, of another model, or a pickle with code in it.
    """
    if settings.model != TINY:
        need("open_clip", f"clip.model={settings.model}")
    plan = make_plan(settings.model, models)
    state = weights.load_state_dict(plan.file)
    model: Any = PlainClip(plan.config) if settings.model == TINY else _built(plan)
    try:
        model.load_state_dict(state if settings.model == TINY else _converted(model, state))
    except (RuntimeError, KeyError, AssertionError, AttributeError, ValueError, IndexError, TypeError) as exc:
        raise WeightsInvalid(
            f"{plan.file}: not weights of {plan.space}: {first_line(exc)}",
            remedy="name the architecture they were trained with, NAME:FILE",
        ) from exc
    model.eval().requires_grad_(False)
    return LoadedClip(plan, model)


def make_plan(model: str, models: ModelSettings) -> Plan:
    """Return what a value of `clip.model` means; raises as `load_clip`."""
    if model == TINY:
        return _plan_folder(weights.find(TINY, models), TINY, PLAIN)
    path = expanded(model)
    if model and path.exists():
        file = weights_in(path, HUB_WEIGHTS) if path.is_dir() else path
        if file is None:
            raise BackendUnavailable(
                f"clip.model: {path} holds no weights file, or several", remedy=f"name one of them {HUB_WEIGHTS}"
            )
        return _plan_folder(file, f"{file.parent.resolve().name}@{fingerprint(file)}", CAPTIONS)
    name, colon, pretrained = model.partition(":")
    if not colon or not pretrained:
        from open_clip import list_pretrained

        names = [TINY, *(":".join(pair) for pair in list_pretrained())]
        raise InvalidSetting(
            f"clip.model={model!r} is neither `tiny`, NAME:PRETRAINED, NAME:FILE nor a folder that exists",
            remedy=f"did you mean {_nearest(model, names, 1)!r}? see `arr-stream models list`",
        )
    return _plan_name(name, pretrained, models)


def _nearest(word: str, choices: list[str], most: int = 3) -> str:
    return ", ".join(difflib.get_close_matches(word, choices, n=most, cutoff=0.0))


def _plan_name(name: str, pretrained: str, models: ModelSettings) -> Plan:
    """Return the plan of an open_clip architecture with weights of a known tag or from a file."""
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg, is_pretrained_cfg, list_pretrained_tags_by_model

    config = open_clip.get_model_config(name) if ":" not in name else None
    if config is None:
        raise InvalidSetting(
            f"clip.model: open_clip has no architecture {name!r}",
            remedy=f"nearest: {_nearest(name, open_clip.list_models())}",
        )
    file, tags = expanded(pretrained), list_pretrained_tags_by_model(name)
    if is_pretrained_cfg(name, pretrained):
        known = get_pretrained_cfg(name, pretrained)
        # Weights trained with QuickGELU give worse results without it, and no error.
        config["quick_gelu"] = known.get("quick_gelu", config.get("quick_gelu", False))
        space = f"{name}:{pretrained}"
        return Plan(config, weights.find(space, models), space, *_statistics(known), CAPTIONS)
    if file.is_file():
        known = get_pretrained_cfg(name, tags[0]) if tags else {}
        return Plan(config, file, f"{name}:{file.stem}@{fingerprint(file)}", *_statistics(known), CAPTIONS)
    if file.suffix or len(file.parts) > 1:
        raise BackendUnavailable(f"clip.model: no weights file {pretrained}", remedy="check the path after the colon")
    near = _nearest(pretrained, tags)
    hint = f"{name} has {near}" if near else f"for {name} give the path of a file after the colon"
    raise InvalidSetting(f"clip.model: no weights {pretrained!r} are known for {name}", remedy=hint)


def _plan_folder(file: Path, space: str, templates: tuple[str, ...]) -> Plan:
    """Return the plan of a weights file in a folder in open_clip's own form."""
    path = file.parent / CONFIG_NAME
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        config = dict(written["model_cfg"])
        templates = tuple(written.get("prompt_templates", templates))
        if not templates or any(template.count("{}") != 1 for template in templates):
            raise ValueError("every text of prompt_templates needs one {}")
        if not isinstance(config.get("vision_cfg"), dict) or not isinstance(config.get("text_cfg"), dict):
            raise ValueError("vision_cfg and text_cfg are objects")
        mean, std = _statistics(dict(written.get("preprocess_cfg", {})))
        if len(mean) != 3 or len(std) != 3 or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
            raise ValueError("mean and std are three numbers each, std above 0")
    except FileNotFoundError as exc:
        raise InvalidSetting(
            f"clip.model: {file.parent} holds no {CONFIG_NAME}",
            remedy="write NAME:FILE to use an architecture of open_clip's",
        ) from exc
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise InvalidSetting(
            f"clip.model: {path} is not a configuration of open_clip: {type(exc).__name__}: {exc}",
            remedy="it needs model_cfg and may have preprocess_cfg and prompt_templates",
        ) from exc
    vocabulary = file.parent / "bpe.txt.gz"
    if vocabulary.is_file():
        text = config["text_cfg"]
        options = {**text.get("tokenizer_kwargs", {}), "bpe_path": str(vocabulary)}
        config["text_cfg"] = {**text, "tokenizer_kwargs": options}
    return Plan(config, file, space, mean, std, templates)


def _statistics(entry: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and deviation of pixels in a preprocessing configuration; OpenAI's by default."""
    return tuple(entry.get("mean") or _OPENAI_MEAN), tuple(entry.get("std") or _OPENAI_STD)


def fingerprint(file: Path) -> str:
    """Return eight hexadecimal digits that identify a weights file, from its size and a MiB at both ends."""
    edge, size = 1 << 20, file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(edge)
        stream.seek(max(0, size - edge))
        return hashlib.sha256(str(size).encode() + head + stream.read(edge)).hexdigest()[:8]


def _built(plan: Plan) -> Any:
    """Return the architecture with random weights; parts that need the hub are refused."""
    import open_clip

    config = copy.deepcopy(plan.config)
    try:
        vision, text = config["vision_cfg"], config["text_cfg"]
        if "multimodal_cfg" in config or text.get("hf_model_name") or ":" in str(vision.get("timm_model_name") or ""):
            raise InvalidSetting(
                f"clip.model={plan.space}: captioning models and towers from the hub are not supported",
                remedy="use a ViT, SigLIP or MobileCLIP model of open_clip",
            )
        if vision.get("timm_model_name"):
            vision["timm_model_pretrained"] = False
        _check_fits(vision, text, plan)
        kind = open_clip.CustomTextCLIP if config.pop("custom_text", False) else open_clip.CLIP
        return kind(**config)
    except (InvalidSetting, WeightsInvalid):
        raise
    except Exception as exc:  # It is built from untrusted numbers, so it may fail in any way.
        raise InvalidSetting(
            f"{plan.file}: open_clip cannot build it: {type(exc).__name__}: {exc}",
            remedy="check model_cfg, or update open_clip_torch",
        ) from exc


def _check_fits(vision: Mapping[str, Any], text: Mapping[str, Any], plan: Plan) -> None:
    """Reject, before building it, an architecture too large for the weights file: it could take unbounded memory."""
    least = _least_bytes(text, 512) + _number(text, "vocab_size", 49_408) * _number(text, "width", 512)
    if not vision.get("timm_model_name"):
        patches = (_number(vision, "image_size", 224) / max(1.0, _number(vision, "patch_size", 16))) ** 2
        least += _least_bytes(vision, 768) + patches * _number(vision, "width", 768)
    size = plan.file.stat().st_size
    if least > 2 * size:
        raise WeightsInvalid(
            f"{plan.space}: model_cfg calls for about {least:.1g} numbers, and {plan.file} has {size} bytes",
            remedy="take configuration and weights from one and the same model",
        )


def _least_bytes(tower: Mapping[str, Any], width: float) -> float:
    """Estimate a tower's least file size: a byte a number, and a kilobyte a layer for its tensors' names."""
    layers, width = _number(tower, "layers", 12), _number(tower, "width", width)
    return layers * (width**2 * (4 + 2 * _number(tower, "mlp_ratio", 4)) + 1000)


def _number(section: Mapping[str, Any], key: str, default: float) -> float:
    """Return the number under a key, the sum of several, or the default without a match."""
    value = section.get(key, default)
    values = value if isinstance(value, list) else [value]
    found = [float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    return sum(abs(one) for one in found) if found else default


def _converted(model: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the model's own names, converted as by open_clip's own loader."""
    from open_clip.convert import convert_state_dict
    from open_clip.model import convert_to_custom_text_state_dict, resize_pos_embed, resize_text_pos_embed

    # The CPU cannot resize positions in half precision.
    state = convert_state_dict(model, {name: tensor.float() for name, tensor in state.items()})
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    # Scale and bias of the training loss are not used, and files hold them in several shapes or not at all.
    loss = ("logit_scale", "logit_bias")
    state = {name: tensor for name, tensor in state.items() if name not in loss}
    state |= {name: tensor for name, tensor in model.state_dict().items() if name in loss}
    resize_pos_embed(state, model)
    resize_text_pos_embed(state, model)
    return state


def make_tokenizer(plan: Plan) -> Tokenizer:
    """Return the tokeniser that belongs to the model, from files on disk alone.

    Raises:
        BackendUnavailable: Its files or its package are missing.
        WeightsInvalid: It is damaged, or has more tokens than the model.
    """
    text = plan.config["text_cfg"]
    if plan.space == TINY:
        return _shipped_tokenizer(plan)
    options = {key: value for key, value in text.get("tokenizer_kwargs", {}).items() if key != "reduction_mask"}
    length = int(text.get("context_length", 77))
    if text.get("hf_tokenizer_name"):
        return _hub_tokenizer(plan, length, options)
    from open_clip import SimpleTokenizer

    try:
        simple = SimpleTokenizer(context_length=length, **options)
    except (OSError, TypeError, ValueError, EOFError) as exc:
        raise WeightsInvalid(
            f"{plan.space}: the tokeniser cannot be read: {type(exc).__name__}: {exc}", remedy="restore bpe.txt.gz"
        ) from exc
    expected = int(text.get("vocab_size", 49408))
    if simple.vocab_size > expected:
        raise WeightsInvalid(
            f"{plan.space}: the tokeniser has {simple.vocab_size} tokens, the model {expected}",
            remedy="put the model's own bpe.txt.gz beside its weights",
        )
    return Tokenizer(lambda words: [simple.sot_token_id, *simple.encode(words), simple.eot_token_id], simple)


def _shipped_tokenizer(plan: Plan) -> Tokenizer:
    pairs = byte_pairs(plan.file.parent / "bpe.txt.gz")
    length, start = int(plan.config["text_cfg"]["context_length"]), pairs.get_vocab_size()

    def encode(text: str) -> list[int]:
        return [start, *pairs.encode(text).ids, start + 1]

    def batch(texts: list[str]) -> Tensor:
        tokens = torch.zeros(len(texts), length, dtype=torch.long)
        for row, text in zip(tokens, texts, strict=True):
            kept = encode(text)[:length]
            row[: len(kept)] = torch.tensor([*kept[:-1], start + 1])
        return tokens

    return Tokenizer(encode, batch)


def _hub_tokenizer(plan: Plan, length: int, options: dict[str, Any]) -> Tokenizer:
    folder = plan.file.parent
    if not (folder / "tokenizer.json").is_file():
        raise BackendUnavailable(
            f"{plan.space}: no tokenizer.json beside {plan.file.name}",
            remedy=f"copy the tokeniser's files there, or run `arr-stream models fetch {plan.space}`",
        )
    need("transformers", f"{plan.space}'s tokeniser")
    from open_clip import HFTokenizer

    hub = HFTokenizer(str(folder), context_length=length, local_files_only=True, **options)
    return Tokenizer(lambda words: list(hub.tokenizer(hub.clean_fn(words)).input_ids), hub)
