"""The weights that arr-stream knows by name, with their origin, size, hash and licence.

Names are those of the settings: `clip.model` takes `tiny` and NAME:PRETRAINED as open_clip writes it, `sam.model` takes
`vit_b`, `vit_l` and `vit_h`, `keyframes.objects` takes `yolox_s`, `dfine_n` and the like. Of all Qwen3-VL models only
the tiny one is listed, which ships with the package. Sizes and hashes are listed only if published; the
download checks other files against the hash that the hub states.

    FOLDER/NAME/FILE          a file of weights; in NAME, `--` replaces `:`

A file that the user put there by hand counts as much as a downloaded one.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from arr_stream.errors import InvalidSetting
from arr_stream.extras import needed_by
from arr_stream.files import expanded

HUB = "https://huggingface.co/"
HUB_WEIGHTS = "open_clip_model.safetensors"
PCA_NAME = "pca.safetensors"
"""Mean and principal directions of a model's features, which may be stored beside its weights."""

TINY_QWEN = "tiny-qwen3-vl"
"""Catalogue name of the default model for answers; `vlm.model` calls it `tiny`."""

_WEIGHTS_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")


@dataclass(frozen=True, slots=True)
class HubFile:
    """File on the Hugging Face hub: the repository as `owner/name`, the revision as a commit or `main`, the newest."""

    repository: str
    file_name: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"{HUB}{self.repository}"


@dataclass(frozen=True, slots=True)
class KnownWeights:
    """Weights of one model.

    Args:
        name: As in the settings.
        kind: `clip`, `sam`, `objects` or `vlm`.
        origin: Source of the file: a file on the hub, an https address, or the path of a file inside the package.
        licence: SPDX identifier; `unknown` for entries from open_clip's table.
        size_bytes: Exact size, if published.
        sha256: Hash in hexadecimal, if published; always for an https address.
    """

    name: str
    kind: str
    origin: HubFile | str | Path
    licence: str
    size_bytes: int | None = None
    sha256: str | None = None

    @property
    def file_name(self) -> str:
        return self.origin.file_name if isinstance(self.origin, HubFile) else Path(self.origin).name


def _sam(name: str, version: str, size_bytes: int, sha256: str) -> KnownWeights:
    origin = f"https://dl.fbaipublicfiles.com/segment_anything/sam_{name}_{version}.pth"
    return KnownWeights(name, "sam", origin, "Apache-2.0", size_bytes, sha256)


def _yolox(name: str, size_bytes: int | None, sha256: str) -> KnownWeights:
    origin = f"https://github.com/Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0/{name}.onnx"
    return KnownWeights(name, "objects", origin, "Apache-2.0", size_bytes, sha256)


def _dfine(name: str, revision: str, size_bytes: int, sha256: str) -> KnownWeights:
    # The file's hash is pinned, so it needs no hub client.
    origin = f"{HUB}onnx-community/{name}_coco-ONNX/resolve/{revision}/onnx/model.onnx"
    return KnownWeights(name, "objects", origin, "Apache-2.0", size_bytes, sha256)


def _clip(name: str, repository: str, size_bytes: int, sha256: str, revision: str = "main") -> KnownWeights:
    return KnownWeights(name, "clip", HubFile(repository, HUB_WEIGHTS, revision), "MIT", size_bytes, sha256)


_ENTRIES = (
    KnownWeights(
        "tiny",
        "clip",
        Path(__file__).with_name("tiny_clip") / HUB_WEIGHTS,
        "Apache-2.0",
        7_027_540,
        "535abd07e2f1a099a66e26021b1ab2aa73315baee9223e85eb1f729deaf31550",
    ),
    KnownWeights(
        TINY_QWEN,
        "vlm",
        Path(__file__).with_name("tiny_qwen3_vl") / "model.safetensors",
        "Apache-2.0",
        11_729_560,
        "e559148696505b04f008c7c397dd2746aaf7abe69d5bceeb71ea620634c72889",
    ),
    _sam("vit_b", "01ec64", 375_042_383, "ec2df62732614e57411cdcf32a23ffdf28910380d03139ee0f4fcbe91eb8c912"),
    _sam("vit_l", "0b3195", 1_249_524_607, "3adcc4315b642a4d2101128f611684e8734c41232a17c648ed1693702a49a622"),
    _sam("vit_h", "4b8939", 2_564_550_879, "a7bf3b02f3ebf1267aba913ff637d9a2d5c33d3173bb679e46d9f338c26f262e"),
    _yolox("yolox_tiny", None, "427cc366d34e27ff7a03e2899b5e3671425c262ea2291f88bb942bc1cc70b0f7"),
    _yolox("yolox_s", 35_858_002, "c5c2d13e59ae883e6af3b45daea64af4833a4951c92d116ec270d9ddbe998063"),
    _dfine(
        "dfine_n",
        "380d2839c327efaf65dd0fe0c2c10ab7fadd5473",
        15_258_358,
        "0f684f409618ee8a822410e754a29caa817d1aa16283ce89cad936d0a48e2f35",
    ),
    _dfine(
        "dfine_s",
        "a3cf03147a9b86c78475139115c8ac142577352d",
        41_535_197,
        "cd8a49a945feda6d28c6304ae8ae85c2759ba1d78a5a83a22c5ce8db82ef7238",
    ),
    _clip(
        "ViT-B-32:openai",
        "timm/vit_base_patch32_clip_224.openai",
        605_143_284,
        "e6d1bd7789aa45192b3bf90570a789b478bae1b74ebcce7eddd908e83a2b7c31",
        "a6f597a30f7b82c51704746581f9a4e41421e878",
    ),
    _clip(
        "ViT-B-16:openai",
        "timm/vit_base_patch16_clip_224.openai",
        598_516_980,
        "4b8699299b1e8997753c64b052ba32031449d5d853f55a039148560ee02b820f",
        "977e3dd0ec55ab8da155f2fbeb6b5f54948b6e3d",
    ),
    _clip(
        "ViT-L-14:openai",
        "timm/vit_large_patch14_clip_224.openai",
        1_710_517_724,
        "9ce2e8a8ebfff3793d7d375ad6d3c35cb9aebf3de7ace0fc7308accab7cd207e",
    ),
    _clip(
        "ViT-B-32:laion2b_s34b_b79k",
        "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
        605_143_316,
        "ac4f8c4b88af6d963118cbf40ad93176d092abbedfcb752601ae1866352656e6",
        "1a25a446712ba5ee05982a381eed697ef9b435cf",
    ),
)
CATALOGUE: dict[str, KnownWeights] = {entry.name: entry for entry in _ENTRIES}


def shipped_folder(name: str) -> Path:
    """Return the folder of weights that ship with the package, with the model's other files."""
    origin = CATALOGUE[name].origin
    assert isinstance(origin, Path)
    return origin.parent


def known(name: str) -> KnownWeights:
    """Return the weights of that name; unlisted NAME:PRETRAINED pairs come from open_clip's own table.

    Raises:
        InvalidSetting: No such name; the message names the nearest.
        BackendUnavailable: Only open_clip could know the name, and it is not installed.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    choices = list(CATALOGUE)
    model, colon, tag = name.partition(":")
    if colon:
        with needed_by(f"looking up {name}"):
            from open_clip.pretrained import get_pretrained_cfg, list_pretrained
        repository, _, file_name = get_pretrained_cfg(model, tag).get("hf_hub", "").rpartition("/")
        if repository:
            # A bare repository means open_clip's usual file, which the hub also has as safetensors.
            return KnownWeights(name, "clip", HubFile(repository, file_name or HUB_WEIGHTS), "unknown")
        choices += [":".join(pair) for pair in list_pretrained()]
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)
    raise InvalidSetting(
        f"no weights are known as {name!r}", remedy=f"did you mean {near[0]!r}? see `arr-stream models list`"
    )


def folder(setting: str = "auto") -> Path:
    """Return the folder of all weights: `models.folder`, else ARR_STREAM_MODELS, else one in the user's cache."""
    chosen = setting if setting != "auto" else os.environ.get("ARR_STREAM_MODELS", "")
    if chosen:
        return expanded(chosen)
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires that relative paths be ignored.
    cache = Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache"
    return cache / "arr-stream" / "models"


def place(weights: KnownWeights, models_folder: Path) -> Path:
    """Return the folder of one model's weights; it may not exist yet."""
    return models_folder / weights.name.replace(":", "--")


def on_disk(weights: KnownWeights, models_folder: Path) -> Path | None:
    """Return the weights' file if it exists: under its own name, or else the only weights file in the folder."""
    here = weights.origin.parent if isinstance(weights.origin, Path) else place(weights, models_folder)
    return weights_in(here, weights.file_name)


def weights_in(here: Path, file_name: str) -> Path | None:
    """Return the file `file_name` of a folder, else its only weights file; None without a file or with several."""
    if (here / file_name).is_file():
        return here / file_name
    others = [path for path in here.glob("*") if path.suffix in _WEIGHTS_SUFFIXES and path.name != PCA_NAME]
    return others[0] if len(others) == 1 else None
