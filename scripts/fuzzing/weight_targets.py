"""Fuzzing of checkpoints: safetensors, files of `torch.save`, PCA files, CLIP and Qwen3-VL folders, SAM, notes."""

from __future__ import annotations

import io
import json
import random
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzzing.mutate import CORPUS, PLAIN, TEXT, Mutation, inserted, json_value
from fuzzing.target import Run, Target

warnings.filterwarnings("ignore", "Duplicate name", UserWarning, "zipfile")


def safetensors_header(rng: random.Random, data: bytes) -> bytes:
    """The JSON in front of the tensors, with its length made right again most of the time."""
    if len(data) < 8:
        return data
    size = struct.unpack("<Q", data[:8])[0]
    if size > len(data):
        return rng.choice(PLAIN)(rng, data)
    header = json_value(rng, data[8 : 8 + size])
    wanted = len(header) if rng.random() < 0.9 else rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(header) + 1))
    return struct.pack("<Q", wanted) + header + data[8 + size :]


def zipped_entry(rng: random.Random, data: bytes) -> bytes:
    """A file inside a zip archive is changed, renamed, doubled or left out; the archive itself stays whole."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:  # It is damaged already, in whatever way.
        return rng.choice(PLAIN)(rng, data)
    if not entries:
        return data
    at = rng.randrange(len(entries))
    name, body = entries[at]
    match rng.randrange(6):
        case 0:
            del entries[at]
        case 1:
            odd = ("archive/code/x.py", "archive/constants.pkl", "../x", "archive/data.pkl", "/x")
            entries[at] = (rng.choice(odd), body)
        case 2:
            entries.append((name, body))
        case _:
            entries[at] = (name, rng.choice((*PLAIN, _PICKLE))(rng, body or b"\x00"))
    out = io.BytesIO()
    with zipfile.ZipFile(
        out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as archive:
        for name, body in entries:
            archive.writestr(zipfile.ZipInfo(name), body)
    return out.getvalue()


_PICKLE = inserted("pickle")


def _tensors() -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    return {"a.weight": torch.randn(4, 3), "a.bias": torch.zeros(4, dtype=torch.float16), "n": torch.arange(3)}


def _safetensors() -> list[bytes]:
    from safetensors.torch import save

    return [save(_tensors()), save({f"module.{k}": v for k, v in _tensors().items()}, {"format": "pt"})]


def _torch_files() -> list[bytes]:
    import torch

    made = []
    for held in (
        _tensors(),
        {"state_dict": _tensors(), "epoch": 3},
        {"model": {"x": torch.nn.Parameter(torch.ones(2))}},
    ):
        for zipped in (True, False):
            out = io.BytesIO()
            torch.save(held, out, _use_new_zipfile_serialization=zipped)
            made.append(out.getvalue())
    return made


def _open_state(name: str) -> Callable[[Path], Run]:
    def opened(scratch: Path) -> Run:
        import torch

        from arr_stream.weights import load_state_dict

        path = scratch / name

        def run(data: bytes) -> str:
            path.write_bytes(data)
            state = load_state_dict(path)
            for key, tensor in state.items():
                if not isinstance(tensor, torch.Tensor) or (
                    tensor.is_floating_point() and not torch.isfinite(tensor.float()).all()
                ):
                    raise AssertionError(f"{key!r} let through")
            return f"{min(len(state), 4)} tensors"

        return run

    return opened


def _pca_files() -> list[bytes]:
    import numpy as np
    from safetensors.numpy import save

    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((24, 24)))[0][:16].astype(np.float32)
    tensors = {"mean": np.zeros(24, np.float32), "basis": basis, "variance": np.linspace(2, 1, 16).astype(np.float32)}
    about = {"format": "arr-stream pca 1", "space": "tiny", "method": "value", "count": "99", "total_variance": "40.0"}
    return [save(tensors, about)]


def _open_pca(scratch: Path) -> Run:
    import numpy as np

    from arr_stream.keyframes.embeddings.pca import load_pca

    path = scratch / "pca.safetensors"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        pca = load_pca(path)
        if not np.isfinite(pca.basis).all() or not 0 <= pca.variance_kept(pca.components) <= 1:
            raise AssertionError("a PCA of what are no numbers")
        return f"{pca.components} directions"

    return run


def _kept(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(CORPUS / name).read_bytes().rstrip()]


def _open_clip(scratch: Path) -> Run:
    """The configuration is what is changed; weights and tokeniser beside it are whole."""
    import gzip

    import open_clip
    import torch
    from safetensors.torch import save_file

    from arr_stream.config import ClipSettings, ModelSettings
    from arr_stream.keyframes.embeddings.openclip import load_clip

    torch.set_num_threads(1)
    folder = scratch / "clip"
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model_config: Any = json.loads((CORPUS / "clip.json").read_bytes())["model_cfg"]
    save_file(open_clip.CLIP(**model_config).state_dict(), folder / "open_clip_model.safetensors")
    with gzip.open(folder / "bpe.txt.gz", "wt", encoding="utf-8") as file:
        file.write("#version: 1\nr e")

    def run(data: bytes) -> str:
        (folder / "open_clip_config.json").write_bytes(data)
        clip = load_clip(ClipSettings(model=str(folder)), ModelSettings())
        assert clip.tokenizer is not None
        tokens = clip.tokenizer.batch(["a thing"])
        if tokens.shape != (1, clip.context_length):
            raise AssertionError(f"tokens of shape {tuple(tokens.shape)}")
        return f"image {clip.image_size_hw} templates {min(len(clip.templates), 3)}"

    return run


def _small_sam() -> Any:
    import torch

    class Small(torch.nn.Module):
        """As little as `load_sam` compares: names and shapes."""

        def __init__(self) -> None:
            super().__init__()
            self.image_encoder = torch.nn.Linear(4, 3)
            self.mask_decoder = torch.nn.Conv2d(3, 2, 1)

    return Small()


def _sam_files() -> list[bytes]:
    import torch
    from safetensors.torch import save

    torch.manual_seed(0)
    state = _small_sam().state_dict()
    out = io.BytesIO()
    torch.save(state, out)
    return [out.getvalue(), save(state)]


def _open_sam(scratch: Path) -> Run:
    from arr_stream.keyframes.clusters.sam import load_sam

    path = scratch / "sam.pth"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        return type(load_sam({"vit_b": _small_sam}, "vit_b", path)).__name__

    return run


_QWEN_FILES = ("config.json", "preprocessor_config.json", "model.safetensors.index.json", "model.safetensors")


def _qwen_folder(place: Path) -> Path:
    """A tiny Qwen3-VL in two shards' worth of names, made anew; only what is looked at before loading."""
    import torch
    from make_tiny_qwen3_vl import make_tiny_qwen3_vl

    torch.set_num_threads(1)
    folder: Path = make_tiny_qwen3_vl(place, vision_layers=2, text_layers=1, hidden=64)
    return folder


def _qwen_seeds() -> list[bytes]:
    """One for each file of the folder: which it is, then its content."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="arr-stream-fuzz-") as place:
        folder = _qwen_folder(Path(place) / "qwen")
        with (folder / "model.safetensors").open("rb") as file:
            head = file.read(8)
            header = head + file.read(struct.unpack("<Q", head)[0])
        names = json.loads(header[8:])
        index = {"weight_map": {name: "model.safetensors" for name in names if name != "__metadata__"}}
        preprocessor = folder / "preprocessor_config.json"
        statistics = b'{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
        return [
            b"\x00" + (folder / "config.json").read_bytes(),
            b"\x01" + (preprocessor.read_bytes() if preprocessor.is_file() else statistics),
            b"\x02" + json.dumps(index).encode(),
            b"\x03" + header,
        ]


def _open_qwen(scratch: Path) -> Run:
    from arr_stream.vlm.qwen3_vl.checkpoint import is_whole, read_checkpoint

    whole = _qwen_folder(scratch / "whole")
    folder = scratch / "qwen"

    def run(data: bytes) -> str:
        which = data[0] % len(_QWEN_FILES)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path in whole.iterdir():
            if path.is_file() and path.name != _QWEN_FILES[which]:
                (folder / path.name).hardlink_to(path)
        if which == 2:
            (folder / "model.safetensors").rename(folder / "part.safetensors")
            (folder / _QWEN_FILES[2]).write_bytes(data[1:].replace(b'"model.safetensors"', b'"part.safetensors"'))
        elif which == 3:
            size = struct.unpack("<Q", data[1:9].ljust(8, b"\x00"))[0]
            with (whole / "model.safetensors").open("rb") as file:
                file.seek(8 + struct.unpack("<Q", file.read(8))[0])
                tensors = file.read()
            (folder / "model.safetensors").write_bytes(data[1:] + (tensors if size < len(data) else b""))
        else:
            (folder / _QWEN_FILES[which]).write_bytes(data[1:])
        is_whole(folder)
        checkpoint = read_checkpoint(folder)
        return f"{which}: {len(checkpoint.tensors)} tensors {checkpoint.saved_dtype}"

    return run


def _qwen_change(rng: random.Random, data: bytes) -> bytes:
    """The file's number stays; JSON and headers are changed as such."""
    inner: Mutation = safetensors_header if data[0] % 4 == 3 else json_value
    if rng.random() < 0.15:
        inner = rng.choice(PLAIN)
    return data[:1] + inner(rng, data[1:] or b"{}")


def _open_notes(scratch: Path) -> Run:
    import torch  # noqa: F401 - loaded before memory is limited

    from arr_stream.weights import verify
    from arr_stream.weights.catalogue import KnownWeights, WebFile
    from arr_stream.weights.places import NOTE_FILE, check_size, noted, read_note

    folder = scratch / "models" / "x"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "w.pt").write_bytes(b"1234")
    weights = KnownWeights("x", "clip", WebFile("https://example.org/w.pt"), "MIT")

    def run(data: bytes) -> str:
        (folder / NOTE_FILE).write_bytes(data)
        read_note(folder / "w.pt")
        found = noted(folder.parent)
        state = verify(weights, folder.parent).state
        check_size(weights, folder / "w.pt")
        return f"{len(found)} noted {state}"

    return run


def _weights(
    name: str,
    about: str,
    seeds: Callable[[], list[bytes]],
    opened: Callable[[Path], Run],
    mutations: Sequence[Mutation],
    share: float = 0.3,
    memory_mb: int = 512,
) -> Target:
    return Target(name, about, seeds, opened, mutations, share, memory_mb=memory_mb, forbidden=("pickle.find_class",))


_CONFIG = (json_value, json_value, json_value, json_value, *TEXT)
_HEADERS = (safetensors_header, safetensors_header, *PLAIN)
_ZIPPED = (zipped_entry, zipped_entry, zipped_entry, *PLAIN, _PICKLE)

TARGETS = (
    _weights("safetensors", "weights in safetensors files", _safetensors, _open_state("w.safetensors"), _HEADERS, 0.8),
    _weights("torch", "weights in files of torch.save", _torch_files, _open_state("w.pt"), _ZIPPED, 1.0),
    _weights("pca", "PCA files", _pca_files, _open_pca, (safetensors_header, *PLAIN), 0.5),
    _weights("clip", "configuration of a CLIP folder", _kept("clip.json"), _open_clip, _CONFIG, memory_mb=1024),
    _weights("sam", "SAM checkpoints", _sam_files, _open_sam, (zipped_entry, safetensors_header, *PLAIN)),
    _weights(
        *("qwen", "a Qwen3-VL folder: configuration, index, headers", _qwen_seeds, _open_qwen, (_qwen_change,)),
        memory_mb=1024,
    ),
    _weights("notes", "notes beside fetched weights", _kept("note.json"), _open_notes, _CONFIG),
)
