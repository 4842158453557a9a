"""Files of stores and web servers: an S3 server on loopback, a web server, and fsspec's memory."""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest
from moto.server import ThreadedMotoServer

from arr_stream.batch import plan, remote
from arr_stream.errors import (
    AuthenticationFailed,
    BackendUnavailable,
    ConnectionFailed,
    DiskFull,
    InvalidSetting,
    NotAMediaFile,
    SourceNotFound,
    SourceTooLarge,
)

CLIP = bytes(range(256)) * 5000


def expand(address: str, storage: dict[str, Any]) -> list[str]:
    return plan.expand([address], storage=storage)


def _fetch(address: str, folder: Path, storage: dict[str, Any] | None = None, *, max_bytes: int = 1 << 30) -> None:
    """Fetch a file and check that nothing is left afterwards, even after an error."""
    try:
        with remote.fetched(address, storage or {}, folder=folder, max_bytes=max_bytes):
            pass
    finally:
        assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an S3 server with a bucket `videos`; credentials lie in the environment."""
    names = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_DEFAULT_REGION": "us-east-1"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="videos")
    for key in ("a/clip10.mp4", "a/clip9.mp4", "a/notes.txt", "a/b/deep.mkv", "top.mp4", "odd/50% a=b #1?.mp4"):
        client.put_object(Bucket="videos", Key=key, Body=CLIP)
    try:
        yield endpoint
    finally:
        server.stop()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def storage(store: str) -> dict[str, Any]:
    return {"endpoint_url": store}


class TestStore:
    def test_a_file_a_folder_and_a_glob(self, storage: dict[str, Any], tmp_path: Path) -> None:
        assert expand("s3://videos/top.mp4", storage) == ["s3://videos/top.mp4"]
        in_order = ["s3://videos/a/clip9.mp4", "s3://videos/a/clip10.mp4"]
        for address in ("s3://videos/a", "s3://videos/a/", "s3://videos/a/*.mp4"):
            assert expand(address, storage) == in_order
        assert expand("s3://videos/**/*.mkv", storage) == ["s3://videos/a/b/deep.mkv"]
        (odd,) = expand("s3://videos/odd", storage)
        assert odd == "s3://videos/odd/50% a=b #1?.mp4" and expand(odd, storage) == [odd]
        with remote.fetched(odd, storage, folder=tmp_path, max_bytes=len(CLIP)) as path:
            assert path.read_bytes() == CLIP
            assert (path.parent, path.suffix) == (tmp_path, ".mp4")
            assert path.stat().st_mode & 0o077 == 0, "nobody else may read it"
        assert list(tmp_path.iterdir()) == []

    def test_identity_follows_the_content(self, store: str, storage: dict[str, Any]) -> None:
        address = "s3://videos/changing.mp4"
        client = boto3.client("s3", endpoint_url=store)
        seen = []
        for body in (b"one", b"two", b"three"):
            client.put_object(Bucket="videos", Key="changing.mp4", Body=body)
            seen.append(remote.identity(address, storage))
            assert remote.identity(address, storage) == seen[-1]
        assert [identity["size"] for identity in seen] == [3, 3, 5]
        assert len({identity["ETag"] for identity in seen}) == 3
        assert json.loads(json.dumps(seen)) == seen

    @pytest.mark.parametrize("path", ["videos/missing.mp4", "videos/none*.mp4", "no-such-bucket/x.mp4"])
    def test_a_missing_file(self, storage: dict[str, Any], path: str) -> None:
        with pytest.raises(SourceNotFound, match="matches no file" if "*" in path else "no such file"):
            expand(f"s3://{path}", storage)

    def test_a_folder_is_no_file(self, storage: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(NotAMediaFile, match="a folder"):
            _fetch("s3://videos/a", tmp_path, storage)

    def test_missing_credentials(
        self, storage: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(AuthenticationFailed, match="environment"):
            remote.identity("s3://videos/top.mp4", {**storage, "skip_instance_cache": "true"})

    def test_an_unreachable_store(self) -> None:
        storage = {"endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
        with pytest.raises(ConnectionFailed, match="network"):
            remote.identity("s3://videos/top.mp4", storage)

    def test_a_file_above_the_limit(self, storage: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(SourceTooLarge, match=r"source\.remote_max_bytes"):
            _fetch("s3://videos/top.mp4", tmp_path, storage, max_bytes=len(CLIP) - 1)
        _fetch("s3://videos/top.mp4", tmp_path, storage, max_bytes=len(CLIP))


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...

    def send_head(self) -> Any:
        if self.path.startswith("/private"):
            return self.send_error(401)
        if not self.path.startswith(("/long", "/short")):
            return super().send_head()
        # The long answer states no size, the short one a wrong size.
        self.send_response(200)
        if self.path.startswith("/short"):
            self.send_header("Content-Length", "1000")
        self.end_headers()
        return io.BytesIO(bytes(10 if self.path.startswith("/short") else 20_000_000))

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with contextlib.suppress(OSError):
            super().copyfile(source, outputfile)


class TestWeb:
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[str]:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "clip.mp4").write_bytes(CLIP)
        handler = functools.partial(_Handler, directory=str(tmp_path / "site"))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        server.server_close()

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "work").mkdir()
        return tmp_path / "work"

    def test_a_file(self, site: str, folder: Path) -> None:
        address = f"{site}/clip.mp4?version=[1]"
        assert expand(address, {}) == [address]
        assert remote.identity(address, {})["size"] == len(CLIP)
        with remote.fetched(address, {}, folder=folder, max_bytes=len(CLIP)) as path:
            assert path.read_bytes() == CLIP
            assert path.suffix == ".mp4"

    def test_a_long_or_incomplete_answer_is_refused(self, site: str, folder: Path) -> None:
        with pytest.raises(SourceTooLarge):
            _fetch(f"{site}/long", folder, max_bytes=3_000_000)
        with pytest.raises(ConnectionFailed):
            _fetch(f"{site}/short", folder)

    def test_errors_without_secrets(self, site: str) -> None:
        with pytest.raises(SourceNotFound) as missing:
            remote.identity(f"{site}/missing.mp4?token=hush-hush", {})
        with pytest.raises(AuthenticationFailed) as refused:
            remote.identity(f"{site}/private?token=hush-hush", {})
        for error in (missing.value, refused.value):
            assert "hush" not in str(error)
            assert "\n" not in str(error)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe("/full/a.mp4", CLIP)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(DiskFull):
        _fetch("memory://full/a.mp4", tmp_path)


@pytest.mark.parametrize(
    "address",
    [
        "zip://inner.mp4::s3://videos/a.zip",
        "simplecache::s3://videos/top.mp4",
        "reference://x.json",
        "local:///etc/passwd",
        "sftp://host/x.mp4",
    ],
)
def test_other_schemes_are_refused(address: str) -> None:
    with pytest.raises(NotAMediaFile, match=r"not read.*s3://"):
        expand(address, {})


def test_chained_addresses_have_no_meaning(tmp_path: Path) -> None:
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(b"x")
    with pytest.raises(SourceNotFound):
        expand(f"memory://a::file://{secret}", {})


@pytest.mark.parametrize(
    "storage",
    [
        {"key": "hush-hush"},
        {"aws_secret_access_key": "hush-hush"},
        {"sas_token": "hush-hush"},
        {"endpoint_url": "http://me:hush-hush@127.0.0.1:9"},
    ],
)
def test_credentials_as_options_are_refused(storage: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting, match="environment") as refused:
        remote.identity("s3://videos/top.mp4", storage)
    assert "hush" not in str(refused.value)


def test_a_missing_package_is_named() -> None:
    pytest.importorskip("fsspec")
    try:
        import gcsfs  # noqa: F401
    except ImportError:
        with pytest.raises(BackendUnavailable, match="pip install gcsfs"):
            remote.identity("gs://bucket/x.mp4", {})
