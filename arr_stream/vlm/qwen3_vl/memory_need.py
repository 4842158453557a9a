"""How much memory a model will take, told from its headers before any of it is loaded.

Three parts: the weights, exactly, from the shape of every tensor and the type that it will have; the key-value cache
of a full context, exactly; and the numbers that live for a moment while a picture passes through, an estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_stream.config import VlmSettings
from arr_stream.errors import BackendUnavailable, ModelTooLarge
from arr_stream.vlm.qwen3_vl.checkpoint import Checkpoint, Entry, read_checkpoint
from arr_stream.vlm.qwen3_vl.library import need_package

if TYPE_CHECKING:
    import torch

CELLS = 1024
"""Cells of the picture that the work is estimated for: the largest grid of the default settings."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
INT4_BLOCK = 64
"""Numbers that share one float32 scale in bitsandbytes' 4-bit format (its default)."""
_PATCHES_A_CELL = 4
_PIXELS_A_PATCH = 3 * 2 * 16 * 16
_QUANTIZED = ("model.language_model.layers.", "_proj.weight")
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a model takes.

    Args:
        weights_bytes: All parameters, in the type that they are kept in.
        cache_bytes: Keys and values of `vlm.context_tokens` tokens.
        kept_bytes: Features of as many cells, from which the memory is rebuilt, and once more while it is.
        work_bytes: One pass of 1024 cells, vision tower or language model, whichever takes more (estimate).
    """

    weights_bytes: int
    cache_bytes: int
    kept_bytes: int
    work_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.kept_bytes + self.work_bytes

    def __str__(self) -> str:
        kept = ("kept features", self.kept_bytes)
        parts = (("weights", self.weights_bytes), ("cache", self.cache_bytes), kept, ("work", self.work_bytes))
        return f"{_size(self.total_bytes)} ({', '.join(f'{name} {_size(size)}' for name, size in parts)})"


def need(folder: Path, settings: VlmSettings) -> Need:
    """What the model in a folder would take with these settings.

    Raises:
        ArrStreamError: What `read_checkpoint` and `pick_vlm_device` raise.
    """
    checkpoint = read_checkpoint(folder)
    device = pick_vlm_device(settings.device)
    return need_of(checkpoint, pick_dtype(checkpoint, settings.dtype, device), settings)


def need_of(checkpoint: Checkpoint, dtype: str, settings: VlmSettings) -> Need:
    """The same, of a checkpoint that was looked at already; `dtype` as torch names it."""
    size = DTYPE_BYTES[dtype]
    text = checkpoint.config.text_config
    weights = sum(_kept_bytes(key, entry, size, settings.quantize) for key, entry in checkpoint.tensors.items())
    cache = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * size * settings.context_tokens
    levels = 1 + len(checkpoint.config.vision_config.deepstack_visual_indexes)
    kept = 2 * levels * text.hidden_size * size * settings.context_tokens
    return Need(weights, cache, kept, _work_bytes(checkpoint.config, size))


def check_memory(name: str, wanted: Need, free: int) -> None:
    """Refuse a model that would not fit.

    Args:
        name: What the user called it.
        wanted: What it needs.
        free: Bytes that are free, as `free_bytes` tells.

    Raises:
        ModelTooLarge: It needs more than is free; says how much, and for what.
    """
    if wanted.total_bytes > free:
        raise ModelTooLarge(
            f"{name} needs {wanted} and {_size(free)} are free",
            remedy="choose a smaller model, --dtype bfloat16, --quantize int8, or fewer tokens with "
            "--set vlm.context_tokens=N",
        )


def pick_vlm_device(setting: str) -> torch.device:
    """The device that `vlm.device` asks for.

    Raises:
        BackendUnavailable: CUDA was asked for and there is none.
    """
    from arr_stream.weights import pick_device

    try:
        return pick_device(setting)
    except BackendUnavailable as exc:
        raise BackendUnavailable(
            exc.message.replace("models.device", "vlm.device"),
            remedy="use --device cpu, or install a build of torch with CUDA",
        ) from exc


def pick_dtype(checkpoint: Checkpoint, setting: str, device: torch.device) -> str:
    """The type that a model runs in, by torch's name: as saved, but float32 on a CPU, unless one is asked for."""
    if setting != "auto":
        return setting
    return "float32" if device.type == "cpu" else checkpoint.saved_dtype


def is_quantized(key: str, entry: Entry) -> bool:
    """Whether quantisation makes this tensor smaller: the language model's linear layers, not its embeddings and
    output, and nothing of the vision tower."""
    return key.startswith(_QUANTIZED[0]) and key.endswith(_QUANTIZED[1]) and len(entry.shape) == 2


def _kept_bytes(key: str, entry: Entry, size: int, quantize: str) -> int:
    if quantize == "none" or not is_quantized(key, entry):
        return entry.elements * size
    if quantize == "int8":
        return entry.elements + 4 * entry.shape[0]  # A float32 scale for each row.
    return (entry.elements + 1) // 2 + 4 * -(-entry.elements // INT4_BLOCK)


def _work_bytes(config: Any, size: int) -> int:
    vision, text = config.vision_config, config.text_config
    patches = _PATCHES_A_CELL * CELLS
    # In a block: what goes past it and its normed copy; then queries, keys and values, turned in float32 with copies,
    # or the two halves of the wide layer. Attention itself needs no table (flash kernels of torch's sdpa). Twice that
    # is a little more than was measured, positions, libraries' copies and what the allocator keeps included.
    attention = 3 * vision.hidden_size * size + 6 * vision.hidden_size * 4
    per_patch = 2 * vision.hidden_size * size + max(attention, 2 * vision.intermediate_size * size)
    features = CELLS * vision.out_hidden_size * (1 + len(vision.deepstack_visual_indexes)) * size
    seen = patches * (2 * per_patch + _PIXELS_A_PATCH * (4 + size)) + features
    heads = (text.num_attention_heads + 2 * text.num_key_value_heads) * text.head_dim
    per_token = 3 * text.hidden_size * size + max(3 * heads, 3 * text.intermediate_size) * size
    read = CELLS * per_token + features + text.vocab_size * 4
    return int(max(seen, read))


def free_bytes(device: torch.device) -> int:
    """Memory that can be had on a device: what the system calls available, or less where a control group limits it.

    Raises:
        BackendUnavailable: psutil is not installed.
    """
    if device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds in reserve is free to us, though not to others.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    need_package("psutil", "measuring the free memory", remedy="pip install psutil")
    import psutil  # type: ignore[import-untyped]

    return min([int(psutil.virtual_memory().available), *group_free_bytes()])


def group_free_bytes(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> Iterator[int]:
    """What each control group that this process is in still allows, where one sets a limit (Linux, both versions).

    Pages of files that can be dropped at once count as free.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names, base = ("memory.max", "memory.current", "inactive_file"), root
        elif "memory" in controllers.split(","):
            names, base = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), root / "memory"
        else:
            continue
        group = base / path.lstrip("/")
        # Inside a container the path may be that of the host; the group's own files then lie at the top.
        for folder in (group, *group.parents):
            free = _group_free(folder, *names)
            if free is not None:
                yield free
            if folder == base:
                break


def _group_free(folder: Path, limit_name: str, usage_name: str, droppable_name: str) -> int | None:
    try:
        limit = (folder / limit_name).read_text().strip()
        if limit == "max" or int(limit) >= _NO_LIMIT:
            return None
        usage = int((folder / usage_name).read_text())
        stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - usage + int(stat.get(droppable_name, 0)))
    except (OSError, ValueError):
        return None


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
