"""From what was typed to what is meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from arr_stream.errors import NotAMediaFile, SourceNotFound
from arr_stream.sources import open_source
from arr_stream.sources.locate import public_name
from tests.media import moving_frames, write_video


@pytest.mark.parametrize(
    "url", ["rtsp://user:secret@camera/1", "http://host/a.mp4", "https://h/a.m3u8", "udp://@:1234"]
)
def test_addresses_are_refused_without_their_passwords(url: str) -> None:
    with pytest.raises(NotAMediaFile, match="an address, not a file") as caught:
        open_source(url)
    assert "secret" not in str(caught.value) and "user" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("rtsp://me:pw@host/x?y", "rtsp://host/x?y"),
        ("http://a@b:c@host/", "http://host/"),
        ("http://host/a@b", "http://host/a@b"),
        ("mail@home/video.mp4", "mail@home/video.mp4"),
        ("prefix rtmp://u:p@h/live", "prefix rtmp://h/live"),
    ],
)
def test_public_names_hold_no_password(spec: str, name: str) -> None:
    assert public_name(spec) == name


def test_file_urls(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a b.mp4", moving_frames(2))
    with open_source(path.as_uri()) as source:
        assert source.info.path == path
        assert len(list(source.frames())) == 2
    with pytest.raises(SourceNotFound, match="another machine"):
        open_source("file://elsewhere/a.mp4")


@pytest.mark.parametrize("spec", ["", "nowhere/a.mp4", "a\0b.mp4", "frames%05d.jpg"])
def test_missing(tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceNotFound) as caught:
        open_source(spec)
    assert "\n" not in str(caught.value)


def test_a_file_comes_before_a_glob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "take*.mp4", moving_frames(2))
    with open_source("take*.mp4") as source:
        assert source.info.kind == "file"


def test_importing_sources_loads_no_heavy_package() -> None:
    code = "import sys, arr_stream.sources; print([m for m in ('av', 'cv2', 'torch', 'PIL') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
