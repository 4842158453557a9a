"""Weights: nothing but tensors is ever loaded, and nothing but what was asked for is ever fetched."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from arr_stream import weights
from arr_stream.config import ModelSettings
from arr_stream.errors import ArrStreamError, BackendUnavailable, FetchFailed, WeightsInvalid
from arr_stream.weights.catalogue import HubFile, KnownWeights, place
from tests.weight_files import FileServer, PickleBomb, Served, serving_files

STATE = {"weight": torch.arange(600, dtype=torch.float32).reshape(20, 30), "bias": torch.ones(20, dtype=torch.float16)}

Save = Callable[[dict[str, torch.Tensor], Path], None]


def save_legacy(state: dict[str, torch.Tensor], path: Path) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)


FORMATS: dict[str, Save] = {"safetensors": save_file, "pth": torch.save, "pt": save_legacy}


@pytest.fixture(params=FORMATS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"model.{request.param}"
    FORMATS[request.param](STATE, path)
    return path


@contextmanager
def refused(kind: type[ArrStreamError], *words: str) -> Iterator[None]:
    """Ends with such an error, whose one line holds these words and a remedy."""
    with pytest.raises(kind) as caught:
        yield
    said = str(caught.value)
    assert "\n" not in said and caught.value.remedy
    assert all(word in said for word in words), said


# Loading


def test_every_format_gives_back_what_was_saved(saved: Path) -> None:
    state = weights.load_state_dict(saved)
    assert state.keys() == STATE.keys()
    for name, tensor in STATE.items():
        assert torch.equal(state[name], tensor) and state[name].dtype == tensor.dtype


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_wrapped_and_prefixed_weights_are_unwrapped(tmp_path: Path, wrapper: str) -> None:
    torch.save({"epoch": 3, wrapper: {f"module.{name}": t for name, t in STATE.items()}}, tmp_path / "a.pth")
    assert weights.load_state_dict(tmp_path / "a.pth").keys() == STATE.keys()


@pytest.mark.parametrize("kind", ["zipped", "legacy", "bare"])
def test_a_pickle_with_code_is_refused_and_never_run(tmp_path: Path, kind: str) -> None:
    path, mark = tmp_path / "model.pth", tmp_path / "ran"
    if kind == "bare":
        path.write_bytes(pickle.dumps(PickleBomb(mark)))
    else:
        content = {"weight": STATE["weight"], "x": PickleBomb(mark)}
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zipped")
    with refused(WeightsInvalid, str(path), *(() if kind == "bare" else ("could run code", "open"))):
        weights.load_state_dict(path)
    assert not mark.exists()
    if kind != "bare":
        torch.load(path, weights_only=False)
        assert mark.exists(), "the bomb was a dud, and the test above proved nothing"


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
@example(share=0.0)
@example(share=0.9999)
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, name: str, share: float) -> None:
    whole, cut = tmp_path / f"whole.{name}", tmp_path / f"cut.{name}"
    FORMATS[name](STATE, whole)
    data = whole.read_bytes()
    cut.write_bytes(data[: min(int(share * len(data)), len(data) - 1)])
    with refused(WeightsInvalid, str(cut)):
        weights.load_state_dict(cut)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "LFS"),
        (b"<!DOCTYPE html><html>", "damaged"),
    ],
)
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_what_is_not_weights_is_refused(tmp_path: Path, content: bytes, word: str, suffix: str) -> None:
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(content)
    with refused(WeightsInvalid, str(path), word):
        weights.load_state_dict(path)


def test_folders_and_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.pth"):
        with pytest.raises(BackendUnavailable, match="no such"):
            weights.load_state_dict(path)


def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "model.pt"))
    with refused(WeightsInvalid, "TorchScript"):
        weights.load_state_dict(tmp_path / "model.pt")


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(100_000)}, tmp_path / "plain.pth")
    with zipfile.ZipFile(tmp_path / "plain.pth") as plain, zipfile.ZipFile(tmp_path / "bomb.pth", "w") as bomb:
        for entry in plain.namelist():
            bomb.writestr(entry, plain.read(entry), zipfile.ZIP_DEFLATED)
    with refused(WeightsInvalid, "bomb.pth"):
        weights.load_state_dict(tmp_path / "bomb.pth")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_that_are_not_numbers_are_named(tmp_path: Path, bad: float, dtype: torch.dtype) -> None:
    tensor = torch.zeros(50, dtype=dtype)
    tensor[17] = bad
    save_file({"fine": torch.ones(3), "sick": tensor}, tmp_path / "a.safetensors")
    with refused(WeightsInvalid, "sick", "NaN"):
        weights.load_state_dict(tmp_path / "a.safetensors")


def test_large_values_are_not_taken_for_infinity(tmp_path: Path) -> None:
    save_file({"a": torch.full((10,), 3e38), "b": torch.full((10_000,), 60_000.0).half()}, tmp_path / "a.safetensors")
    assert weights.load_state_dict(tmp_path / "a.safetensors")["a"][0] == 3e38


@pytest.mark.parametrize(
    "content",
    [
        {"weight": "text"},
        {},
        [torch.zeros(3)],
        torch.zeros(3),
        {3: torch.zeros(2)},
        {"weight": torch.zeros(1).expand(10**12)},
        {"weight": torch.zeros(4, 4).to_sparse()},
    ],
    ids=["text", "empty", "list", "bare tensor", "number as name", "claims a terabyte", "sparse"],
)
def test_only_plain_tensors_by_name_are_taken(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "a.pth")
    with refused(WeightsInvalid, "a.pth"):
        weights.load_state_dict(tmp_path / "a.pth")


# Catalogue


def test_the_catalogue_agrees_with_open_clip() -> None:
    open_clip = pytest.importorskip("open_clip")
    for entry in weights.CATALOGUE.values():
        if isinstance(entry.origin, HubFile):
            model, _, tag = entry.name.partition(":")
            assert open_clip.get_pretrained_cfg(model, tag)["hf_hub"] == f"{entry.origin.repository}/"


def test_the_catalogue_agrees_with_segment_anything() -> None:
    registry = pytest.importorskip("segment_anything").sam_model_registry
    assert {entry.name for entry in weights.CATALOGUE.values() if entry.kind == "sam"} == set(registry) - {"default"}


# Folders and finding


def test_the_folder_follows_setting_then_environment_then_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ARR_STREAM_MODELS", str(tmp_path / "env"))
    assert weights.folder(str(tmp_path / "set")) == tmp_path / "set"
    assert weights.folder() == tmp_path / "env"
    monkeypatch.delenv("ARR_STREAM_MODELS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights.folder() == tmp_path / "arr-stream" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert weights.folder() == Path.home() / ".cache" / "arr-stream" / "models"


def put(models_folder: Path, name: str, file_name: str | None = None) -> Path:
    """Small weights in the place of known ones."""
    entry = weights.known(name)
    path = place(entry, models_folder) / (file_name or entry.file_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(STATE, path)
    return path


def test_weights_are_found_under_any_file_name(tmp_path: Path) -> None:
    settings = ModelSettings(folder=str(tmp_path))
    path = put(tmp_path, "ViT-B-16:laion2b_s34b_b88k", "from-a-friend.safetensors")
    assert weights.find("ViT-B-16:laion2b_s34b_b88k", settings) == path
    put(tmp_path, "ViT-B-16:laion2b_s34b_b88k", "another.pt")
    with pytest.raises(BackendUnavailable):
        weights.find("ViT-B-16:laion2b_s34b_b88k", settings)


def test_missing_weights_name_the_command_that_fetches_them(tmp_path: Path) -> None:
    with refused(BackendUnavailable, "arr-stream models fetch vit_b", str(tmp_path)):
        weights.find("vit_b", ModelSettings(folder=str(tmp_path)))
    assert not list(tmp_path.iterdir())


def test_download_fetches_and_offline_forbids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with refused(FetchFailed, "HF_HUB_OFFLINE", "timm/vit_base_patch32_clip_224.openai"):
        weights.find("ViT-B-32:openai", ModelSettings(folder=str(tmp_path), download=True))


# Verifying


def test_verify_compares_with_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    entry = KnownWeights("own", "clip", "https://example.org/a.safetensors", "MIT")
    save_file(STATE, path)
    assert weights.verify(entry, path) == "readable: no hash to compare with; 2 sound tensors"
    assert weights.verify(replace(entry, sha256=weights.sha256_of(path)), path).startswith("ok")
    with refused(WeightsInvalid, "SHA-256"):
        weights.verify(replace(entry, sha256="0" * 64), path)


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen3-vl"])
def test_what_comes_along_is_what_the_catalogue_says(name: str) -> None:
    entry = weights.known(name)
    assert weights.verify(entry, weights.find(name, ModelSettings())).startswith("ok")


# Fetching


@pytest.fixture
def hub() -> Iterator[FileServer]:
    with serving_files() as running:
        yield running


@pytest.fixture
def server(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """It speaks https, and is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving_files() as running:
        running.encrypt(certificate)
        yield running


DATA = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(DATA).hexdigest()


def entry_at(url: str, size_bytes: int | None = None, sha256: str | None = DIGEST) -> KnownWeights:
    return KnownWeights("own", "sam", url, "MIT", size_bytes, sha256)


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_a_file_is_fetched_once(server: FileServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server.files["/a.pth"] = Served(DATA)
    entry = entry_at(f"{server.url}/a.pth")
    path = weights.fetch(entry, tmp_path)
    assert path.read_bytes() == DATA and weights.verify(entry, path).startswith("ok")
    assert files_in(tmp_path) == {"a.pth"} and capfd.readouterr() == ("", "")
    weights.fetch(entry, tmp_path)
    assert len(server.asked) == 1
    server.files["/a.pth"] = Served(DATA[::-1])
    with pytest.raises(FetchFailed):
        weights.fetch(entry, tmp_path, force=True)
    assert path.read_bytes() == DATA and len(server.asked) == 2


@pytest.mark.parametrize(
    ("served", "size_bytes", "words"),
    [
        (Served(DATA[::-1]), None, (DIGEST, "tampered")),
        (Served(DATA), None, ("500000",)),
        (Served(DATA, length=False), len(DATA), ("expected", str(len(DATA)))),
        (Served(DATA), 77, ("expected 77",)),
        (Served(DATA, cut_after=300_000), len(DATA), ("SHA-256", "try again")),
        (Served(status=302, headers={"Location": "file:///etc/passwd?token=secret"}), None, ("302",)),
        (Served(status=302, headers={"Location": "http://127.0.0.1:9/a?token=secret"}), None, ("unknown url type",)),
        *((Served(status=code), None, (str(code),)) for code in (404, 500)),
    ],
)
def test_what_is_refused_leaves_nothing(
    server: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    served: Served,
    size_bytes: int | None,
    words: tuple[str, ...],
) -> None:
    if "500000" in words:
        monkeypatch.setattr("arr_stream.weights.fetching.MAX_BYTES", 500_000)
    server.files["/a.pth"] = served
    with pytest.raises(FetchFailed) as caught:
        weights.fetch(entry_at(f"{server.url}/a.pth", size_bytes), tmp_path)
    said = str(caught.value)
    assert all(word in said for word in words) and "secret" not in said and "\n" not in said
    assert not files_in(tmp_path)


def test_redirects_to_https_are_followed_and_certificates_checked(
    server: FileServer, hub: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/a.pth"] = Served(status=302, headers={"Location": f"{server.url}/b?signature=secret"})
    server.files["/b"] = Served(DATA)
    assert weights.fetch(entry_at(f"{server.url}/a.pth"), tmp_path).read_bytes() == DATA
    server.files["/c.pth"] = Served(status=302, headers={"Location": f"{hub.url}/a.pth"})
    for url in (f"{server.url}/c.pth", f"{hub.url}/a.pth"):
        with refused(FetchFailed, "unknown url type"):
            weights.fetch(entry_at(url), tmp_path, force=True)
    assert not hub.asked
    monkeypatch.delenv("SSL_CERT_FILE")
    with refused(FetchFailed, "CERTIFICATE_VERIFY_FAILED"):
        weights.fetch(entry_at(f"{server.url}/b"), tmp_path, force=True)


def test_no_server_and_silent_servers(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FetchFailed, match="Connection refused"):
        weights.fetch(entry_at("https://127.0.0.1:9/a.pth"), tmp_path)

    monkeypatch.setattr("arr_stream.weights.fetching.TIMEOUT_SECONDS", 0.2)
    server.files["/a.pth"], server.stall = Served(DATA), threading.Event()
    with refused(FetchFailed, "timed out"):
        weights.fetch(entry_at(f"{server.url}/a.pth"), tmp_path)
    server.stall.set()


def test_a_full_disk_is_told_before_anything_comes(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/a.pth"] = Served(DATA)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with refused(FetchFailed, "models.folder"):
        weights.fetch(entry_at(f"{server.url}/a.pth"), tmp_path)
    assert not files_in(tmp_path)


# The hub, played by the same server as its client meets it

pytest.importorskip("huggingface_hub")


def serve_hub(hub: FileServer, repository: str, name: str, data: bytes, stated: str | None = None) -> None:
    """A large file: the hub states its hash and size, and redirects to where it lies."""
    digest = stated or hashlib.sha256(data).hexdigest()
    hub.files[f"/{repository}/resolve/main/{name}"] = Served(
        status=302,
        headers={
            "X-Repo-Commit": "c" * 40,
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(data)),
            "ETag": f'"{digest}"',
            # Another host, as the hub keeps large files elsewhere.
            "Location": f"http://localhost:{hub.server_port}/cdn/{name}",
        },
    )
    hub.files[f"/cdn/{name}"] = Served(data, headers={"ETag": f'"{digest}"'})


@pytest.fixture
def safetensors_bytes(tmp_path: Path) -> bytes:
    save_file(STATE, tmp_path / "made.safetensors")
    return (tmp_path / "made.safetensors").read_bytes()


HUB_ENTRY = KnownWeights("Own:tag", "clip", HubFile("own/repo", "open_clip_model.safetensors"), "MIT")


@pytest.fixture(autouse=True)
def no_hub_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_the_hub_states_the_hash(hub: FileServer, tmp_path: Path, safetensors_bytes: bytes) -> None:
    serve_hub(hub, "own/repo", "open_clip_model.safetensors", safetensors_bytes)
    models_folder = tmp_path / "models"
    path = weights.fetch(HUB_ENTRY, models_folder, hub_endpoint=hub.url)
    assert weights.load_state_dict(path).keys() == STATE.keys()
    assert files_in(models_folder) == {"open_clip_model.safetensors"}


@pytest.mark.parametrize(("stated", "published"), [("a" * 64, None), (None, "b" * 64)], ids=["hub", "catalogue"])
def test_a_hub_that_sends_other_bytes_than_it_or_the_catalogue_states(
    hub: FileServer, tmp_path: Path, safetensors_bytes: bytes, stated: str | None, published: str | None
) -> None:
    serve_hub(hub, "own/repo", "open_clip_model.safetensors", safetensors_bytes, stated=stated)
    entry = replace(HUB_ENTRY, sha256=published)
    with refused(FetchFailed, published or stated or "", "deleted"):
        weights.fetch(entry, tmp_path / "models", hub_endpoint=hub.url)
    assert weights.on_disk(entry, tmp_path / "models") is None


def test_a_repository_without_the_file(hub: FileServer, tmp_path: Path) -> None:
    headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": "c" * 40}
    hub.files["/own/repo/resolve/main/open_clip_model.safetensors"] = Served(status=404, headers=headers)
    with refused(FetchFailed, "own/repo", "EntryNotFound"):
        weights.fetch(HUB_ENTRY, tmp_path / "models", hub_endpoint=hub.url)
