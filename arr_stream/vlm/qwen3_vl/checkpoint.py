"""Lookup and inspection of a model's folder, before anything is loaded.

`locate` looks for a hub name in the weights folder (as ORG--NAME) and in Hugging Face's cache, and downloads it only on
request: configuration and weights, never code or pickles.

The folder is not trusted. Of `config.json`, only the keys that describe the architecture are passed on, so that it can
name no code, kernel, adapter or other file. Of the weights, only the safetensors headers are read and compared with the
configuration. Pickles (`*.bin`, `*.pt`) are never opened.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from arr_stream.config import ModelSettings
from arr_stream.errors import ArrStreamError, BackendUnavailable, InvalidSetting, ModelUnsupported, WeightsInvalid
from arr_stream.files import expanded
from arr_stream.vlm.qwen3_vl.adapter import use_transformers
from arr_stream.vlm.qwen3_vl.cells import Normalisation
from arr_stream.vlm.qwen3_vl.families import FAMILIES, Family
from arr_stream.weights import folder as models_folder
from arr_stream.weights.fetching import fetch_repository
from arr_stream.weights.loading import first_line, refuse_pointer

CELL = {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
"""Values that make a visual token a cell of 32x32 pixels of two frames."""
DTYPE_OF = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Names of plain weight types in safetensors, with torch's names."""

FETCHED = ("*.json", "*.safetensors", "*.txt", "*.jinja")
"""Downloaded files: configuration, weights, vocabulary, chat template; never `*.py` or pickles."""
MAX_BYTES = 200 * 2**30
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TOP_KEYS = "image_token_id video_token_id vision_start_token_id vision_end_token_id tie_word_embeddings"
_VISION_KEYS = (
    "depth hidden_size hidden_act intermediate_size num_heads in_channels patch_size spatial_merge_size "
    "temporal_patch_size out_hidden_size num_position_embeddings deepstack_visual_indexes initializer_range "
    "rope_parameters"
)
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_OUTPUT = "lm_head.weight"
_EXPERTS = ".mlp.experts."
_Deviation = Annotated[FiniteFloat, Field(gt=0)]
_COPY_AGAIN = "copy it again from where it came, or delete it and fetch the model with models.download=true"
_CHOOSE = "choose a Qwen3-VL or Qwen3.5 with its vision tower, such as Qwen/Qwen3-VL-2B-Instruct"
_TOWER = "model.visual."
_UNQUANTISED = "choose the same model unquantised, with vlm.dtype=int8 or int4"


class _PixelStatistics(BaseModel):
    """Pixel statistics in a processor's configuration; other keys are ignored."""

    image_mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat]
    image_std: tuple[_Deviation, _Deviation, _Deviation]


@dataclass(frozen=True, slots=True)
class Entry:
    """Tensor as the header of its file describes it: type (`F32`, `BF16`, ...), shape and file."""

    dtype: str
    shape: tuple[int, ...]
    file: Path

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Folder with a complete model of one of `FAMILIES`, as far as checks without loading show.

    `config` is transformers' configuration of the architecture; `tensors` are all that the model will hold.
    """

    name: str
    folder: Path
    family: Family
    config: Any
    tensors: Mapping[str, Entry]
    normalisation: Normalisation

    @property
    def saved_dtype(self) -> str:
        """Torch's name of the type that most of the weights are saved in."""
        counts: dict[str, int] = {}
        for entry in self.tensors.values():
            counts[entry.dtype] = counts.get(entry.dtype, 0) + entry.elements
        return DTYPE_OF[max(counts, key=lambda dtype: counts[dtype])]


def locate(model: str, models: ModelSettings, *, hub_endpoint: str | None = None) -> Path:
    """Return the folder, unchecked, of a model given as a folder or as ORG/NAME; download it if `models` allows that.

    Raises:
        InvalidSetting: `model` is empty.
        BackendUnavailable: No such folder, or a hub name that is not on disk and may not be downloaded.
        FetchFailed: The download failed.
    """
    if not model.strip():
        raise InvalidSetting("vlm.model is empty", remedy="name a folder or a hub name with --model")
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # too long, with a null byte, or of an unknown user
        if (given := expanded(model)).exists():
            return given
    if not _HUB_NAME.fullmatch(model):
        raise BackendUnavailable(
            f"{model}: no such folder, and no hub name ORG/NAME",
            remedy="name a folder with a checkpoint, or a hub name such as Qwen/Qwen3-VL-2B-Instruct",
        )
    own = models_folder(models.folder) / model.replace("/", "--")
    places = [own, *_hub_cache(model)]
    for place in places:
        if is_whole(place):
            return place
    if models.download:
        fetch_repository(model, own, FETCHED, max_bytes=MAX_BYTES, hub_endpoint=hub_endpoint)
        return own
    # An incomplete folder gets a more precise error from `read_checkpoint` than "missing".
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise BackendUnavailable(
        f"{model} is neither a folder, nor in Hugging Face's cache, nor in {own.parent}",
        remedy="fetch it with --download (models.download=true), or name a folder that holds it",
    )


def is_whole(folder: Path) -> bool:
    """Return whether all files that a model needs exist; their content is not checked."""
    try:
        present = _listing(folder, folder.name)
        _weight_files(folder, present, folder.name)
    except ArrStreamError:
        return False
    return {"config.json", "tokenizer.json"} <= present and bool(present & set(_PROCESSORS))


def _hub_cache(model: str) -> list[Path]:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return []
    try:
        found = try_to_load_from_cache(model, "config.json")
    except ValueError:  # not a valid hub name
        return []
    return [Path(found).parent] if isinstance(found, str) else []


def read_checkpoint(folder: Path, name: str | None = None) -> Checkpoint:
    """Check that a folder, called `name` in errors, holds a whole model that can be loaded.

    Raises:
        BackendUnavailable: No such folder; no weights in it, or only pickles; transformers or safetensors missing.
        ModelUnsupported: Not a model, another architecture or cell size, weights quantised already, no tokenizer, or an
            unsupported transformers.
        WeightsInvalid: A file is missing, damaged or truncated, or the tensors do not match `config.json`.
    """
    use_transformers()
    name = name or str(folder)
    present = _listing(folder, name)
    raw = _read_config(folder, present, name)
    family = FAMILIES[raw["model_type"]]
    tensors = _read_headers(_weight_files(folder, present, name))
    if "vision_config" not in raw or not any(key.startswith(_TOWER) for key in tensors):
        raise ModelUnsupported(f"{name}: a {family.name} without its vision tower, which sees nothing", remedy=_CHOOSE)
    config = _built_config(raw, family, name)
    _check_cells(config, name)
    _check_sizes(config, len(tensors), folder)
    tensors = _checked_tensors(config, family, tensors, folder, name)
    if "tokenizer.json" not in present:
        raise ModelUnsupported(f"{name}: no tokenizer.json in {folder}", remedy=_COPY_AGAIN)
    return Checkpoint(name, folder, family, config, tensors, _normalisation(folder, name))


def _listing(folder: Path, name: str) -> frozenset[str]:
    if folder.is_file():
        raise ModelUnsupported(f"{name}: a file, but a model is a folder", remedy="give the file's folder")
    if not folder.is_dir():
        raise BackendUnavailable(f"{name}: no such folder", remedy="name a folder with a checkpoint, or a hub name")
    try:
        return frozenset(path.name for path in folder.iterdir())
    except OSError as exc:
        raise BackendUnavailable(f"{name}: cannot be read: {exc.strerror}", remedy="check its permissions") from exc


def _read_config(folder: Path, present: frozenset[str], name: str) -> Mapping[str, Any]:
    if "config.json" not in present:
        what = "no config.json in it" if present else "empty"
        raise ModelUnsupported(f"{name}: a folder that is not a model: {what}", remedy=_CHOOSE)
    raw = _read_json(folder / "config.json")
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        what = f"a model of type {str(kind)[:80]!r}" if kind else "config.json names no model_type"
        if str(kind).removesuffix("_text") in FAMILIES:
            what += " has no vision tower"
        raise ModelUnsupported(f"{name}: {what}; supported are {', '.join(FAMILIES)}", remedy=_CHOOSE)
    if quantized := raw.get("quantization_config"):
        method = quantized.get("quant_method", "unknown") if isinstance(quantized, Mapping) else "unknown"
        raise ModelUnsupported(f"{name}: its weights are quantised already ({str(method)[:80]})", remedy=_UNQUANTISED)
    if "adapter_config.json" in present:
        raise ModelUnsupported(
            f"{name}: holds an adapter (adapter_config.json), which would change the model",
            remedy="merge it into the weights and save the whole model, or take the file away",
        )
    return raw


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise _damaged(f"{path}: no such file") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise _damaged(f"{path}: not JSON: {first_line(exc)}") from exc
    if not isinstance(found, dict):
        raise _damaged(f"{path}: holds a {type(found).__name__}, not an object")
    return found


def _weight_files(folder: Path, present: frozenset[str], name: str) -> list[Path]:
    if any(re.match(r"shard-\d+-model-", file) for file in present):
        raise ModelUnsupported(
            f"{name}: saved in pieces of a distributed run", remedy="save it whole with save_pretrained"
        )
    if _WEIGHTS in present:
        return [folder / _WEIGHTS]
    index = folder / _INDEX
    if _INDEX in present:
        shards = _read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise _damaged(f"{index}: names no tensors")
        return [_shard(index, shard) for shard in sorted({str(shard) for shard in shards.values()})]
    pickles = sorted(file for file in present if file.endswith(_PICKLES))
    if pickles:
        raise BackendUnavailable(
            f"{name}: no safetensors, only {pickles[0]}; pickles are not read, for they can run code",
            remedy="take the model's safetensors files, or save it anew where it can be trusted",
        )
    raise BackendUnavailable(f"{name}: no weights ({_WEIGHTS} or {_INDEX}) in {folder}", remedy=_COPY_AGAIN)


def _shard(index: Path, shard: str) -> Path:
    if Path(shard).name != shard or not shard.endswith(".safetensors"):
        raise _damaged(f"{index}: names {shard[:80]!r}, no safetensors file beside it")
    path = index.parent / shard
    if not path.is_file():
        raise _damaged(f"{path}: missing, and {_INDEX} names it")
    return path


def _read_headers(files: list[Path]) -> dict[str, Entry]:
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Entry] = {}
    for path in files:
        try:
            with path.open("rb") as file:
                refuse_pointer(path, file.read(40))
            with safe_open(path, framework="pt") as header:
                for key in header.keys():  # noqa: SIM118 - it is no dict
                    part = header.get_slice(key)
                    tensors[key] = Entry(part.get_dtype(), tuple(part.get_shape()), path)
        except (SafetensorError, OSError, ValueError) as exc:
            raise _damaged(f"{path}: damaged or truncated: {first_line(exc)}") from exc
    return tensors


def _built_config(raw: Mapping[str, Any], family: Family, name: str) -> Any:
    make_config = family.class_of("Config")
    try:
        known = {key: value for key, value in raw.items() if key in _TOP_KEYS.split()}
        for section, keys in (("text_config", family.text_keys), ("vision_config", _VISION_KEYS)):
            known[section] = {key: value for key, value in raw[section].items() if key in keys.split()}
        return make_config(**known)
    except KeyError as exc:
        raise _damaged(f"{name}: config.json has no {exc.args[0]}") from exc
    except Exception as exc:  # Its own checks raise many classes of errors.
        raise _damaged(f"{name}: config.json makes no sense: {first_line(exc)}") from exc


def _check_cells(config: Any, name: str) -> None:
    for key, wanted in CELL.items():
        if (found := getattr(config.vision_config, key)) != wanted:
            raise ModelUnsupported(
                f"{name}: {key} is {found}, and {wanted} is supported (a cell is 32x32 pixels of two frames)",
                remedy=_CHOOSE,
            )


def _check_sizes(config: Any, tensors: int, folder: Path) -> None:
    """Refuse more layers than there are tensors, before that many layers are built."""
    for section, key in ((config.text_config, "num_hidden_layers"), (config.vision_config, "depth")):
        if not 1 <= getattr(section, key) <= tensors:
            raise _damaged(
                f"{folder / 'config.json'}: {key} is {getattr(section, key)}, and the weights are {tensors} tensors"
            )


def _checked_tensors(
    config: Any, family: Family, tensors: Mapping[str, Entry], folder: Path, name: str
) -> dict[str, Entry]:
    """Return the model's tensors, after a check that all exist in the right shape, and no others."""
    wanted = _wanted_shapes(config, family, folder)
    if family.experts == "separate":
        wanted = {name: shape for key in wanted for name, shape in _expert_shapes(key, wanted[key], tensors).items()}
    if config.tie_word_embeddings and _OUTPUT not in tensors:
        # tied: one matrix under two names, saved once
        del wanted[_OUTPUT]
    missing = [key for key in wanted if key not in tensors]
    if missing:
        raise _damaged(f"{name}: {len(missing)} of {len(wanted)} tensors are missing, such as {missing[0]}")
    for key, shape in wanted.items():
        entry = tensors[key]
        turned = family.experts == "transposed" and _EXPERTS in key and entry.shape == (shape[0], *shape[:0:-1])
        if entry.shape != shape and not turned:
            raise _damaged(f"{entry.file}: {key} is {list(entry.shape)}, and config.json calls for {list(shape)}")
        if entry.dtype not in DTYPE_OF:
            raise ModelUnsupported(
                f"{entry.file}: {key} is of type {entry.dtype}, and {', '.join(DTYPE_OF)} are supported",
                remedy=_UNQUANTISED,
            )
    for key in tensors:
        # Frequencies that follow from the configuration were saved by some versions, and do no harm.
        if key not in wanted and not key.endswith("inv_freq") and not key.startswith(family.unused):
            raise WeightsInvalid(
                f"{tensors[key].file}: holds {key[:120]}, which config.json does not call for",
                remedy="take config.json and weights from one and the same model",
            )
    return {key: tensors[key] for key in wanted}


def _expert_shapes(key: str, shape: tuple[int, ...], tensors: Mapping[str, Entry]) -> dict[str, tuple[int, ...]]:
    """Return the allowed forms of a model's tensor in a checkpoint: itself, or the layer's experts one by one."""
    layer, inside, part = key.partition(_EXPERTS)
    if not inside or key in tensors:
        return {key: shape}
    names = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
    each = (shape[1] // len(names), shape[2])
    return {f"{layer}{_EXPERTS}{number}.{name}.weight": each for number in range(shape[0]) for name in names}


def _wanted_shapes(config: Any, family: Family, folder: Path) -> dict[str, tuple[int, ...]]:
    import torch

    try:
        with warnings.catch_warnings(), torch.device("meta"):
            # torch warns about layers of zero width, which are refused anyway.
            warnings.simplefilter("ignore", UserWarning)
            skeleton = family.class_of("ForConditionalGeneration")(config)
    except Exception as exc:  # Sizes that do not fit each other fail in every layer of torch.
        raise _damaged(f"{folder / 'config.json'}: no model can be built from it: {first_line(exc)}") from exc
    return {key: tuple(value.shape) for key, value in skeleton.state_dict().items()}


def _normalisation(folder: Path, name: str) -> Normalisation:
    path = next((folder / file for file in _PROCESSORS if (folder / file).is_file()), None)
    if path is None:
        raise ModelUnsupported(f"{name}: no preprocessor_config.json in {folder}", remedy=_COPY_AGAIN)
    found = _read_json(path)
    try:
        said = _PixelStatistics.model_validate(found["image_processor"] if path.name == _PROCESSORS[1] else found)
    except (KeyError, ValidationError) as exc:
        raise _damaged(f"{path}: image_mean and image_std must be three numbers each, the latter above 0") from exc
    return Normalisation(said.image_mean, said.image_std)


def _damaged(what: str) -> WeightsInvalid:
    return WeightsInvalid(what, remedy=_COPY_AGAIN)
