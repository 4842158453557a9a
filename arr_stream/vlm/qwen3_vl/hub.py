"""Where a model lies: a folder, Hugging Face's cache, or the folder of all weights; fetched only if asked for.

FOLDER/ORG--NAME/      a model in the folder of all weights, as it is on the hub, without code and pickles
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from arr_stream.config import ModelSettings
from arr_stream.errors import BackendUnavailable, FetchFailed, InvalidSetting
from arr_stream.vlm.qwen3_vl.library import INSTALL
from arr_stream.weights import folder as models_folder

PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.jinja")
"""What is fetched: configuration, weights, vocabulary, chat template; never `*.py` or pickles."""
MAX_BYTES = 200 * 2**30
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def locate(model: str, models: ModelSettings, *, hub_endpoint: str | None = None) -> Path:
    """The folder of a model, fetched first where it is missing and `models.download` is set.

    Args:
        model: A folder, or a hub name ORG/NAME.
        models: Where to look, and whether to fetch.
        hub_endpoint: Another hub than the one that huggingface_hub is set to.

    Returns:
        A folder that may still be incomplete or hold something else: `read_checkpoint` tells.

    Raises:
        InvalidSetting: `model` is empty.
        BackendUnavailable: No such folder, or a hub name that is not on disk and may not be fetched.
        FetchFailed: It could not be fetched.
    """
    if not model.strip():
        raise InvalidSetting("vlm.model is empty", remedy="name a folder or a hub name with --model")
    if (given := _existing(model)) is not None:
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
        return _fetch(model, own, hub_endpoint)
    # A part of it is worth a more exact word than that it is missing.
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise BackendUnavailable(
        f"{model} is neither a folder, nor in Hugging Face's cache, nor in {own.parent}",
        remedy="fetch it with --download, or name a folder that holds it",
    )


def _existing(model: str) -> Path | None:
    try:
        path = Path(model).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # Too long, with a zero byte, of a user that there is not.
        return None


def is_whole(folder: Path) -> bool:
    """Whether all files that a model needs are there; says nothing of what is in them."""
    if not all((folder / name).is_file() for name in ("config.json", "tokenizer.json")):
        return False
    if not any((folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
        return False
    if (folder / "model.safetensors").is_file():
        return True
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return all((folder / str(shard)).is_file() for shard in index["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _hub_cache(model: str) -> list[Path]:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return []
    try:
        found = try_to_load_from_cache(model, "config.json")
    except ValueError:  # No name that the hub allows.
        return []
    return [Path(found).parent] if isinstance(found, str) else []


def _fetch(model: str, target: Path, endpoint: str | None) -> Path:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise FetchFailed(
            f"{model} is on the Hugging Face hub, and HF_HUB_OFFLINE forbids going there",
            remedy=f"unset it, or put the model's files into {target} by hand",
        )
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.logging import set_verbosity_error
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as exc:
        raise BackendUnavailable(
            f"fetching {model} needs huggingface_hub, which is not installed", remedy=INSTALL
        ) from exc
    from arr_stream.weights.web import check_room

    disable_progress_bars()
    # Its warnings hold signed addresses, which belong in no log.
    set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        target.mkdir(parents=True, exist_ok=True)
        what: dict[str, Any] = {
            "allow_patterns": list(PATTERNS),
            "local_dir": target,
            "endpoint": endpoint,
            "token": False,
        }
        planned: Any = snapshot_download(model, dry_run=True, **what)
        check_room(target, model, sum(file.file_size for file in planned if file.will_download), MAX_BYTES)
        # One file after the other: a fetch that is cut off leaves whole files behind, and goes on from there.
        snapshot_download(model, max_workers=2, **what)
    except FetchFailed:
        raise
    except Exception as exc:  # The hub's client passes on the errors of every layer below it.
        # Only up to a question mark: what follows in an address is signed.
        line = re.sub(r"[?]\S*", "", (str(exc).strip().splitlines() or [""])[0])[:200]
        raise FetchFailed(
            f"{model}: {type(exc).__name__}: {line}",
            remedy=f"check the name and the connection and run it again, which goes on where it stopped; or put "
            f"the files into {target}",
        ) from exc
    return target
