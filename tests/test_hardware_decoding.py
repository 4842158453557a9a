"""Who decodes: refusals that name a remedy, `auto` that says what it found, and pictures that do not depend on it."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from av.codec.hwaccel import hwdevices_available

from arr_stream.errors import BackendUnavailable, InvalidSetting, NotAMediaFile
from arr_stream.sources import open_source
from arr_stream.sources.base import Job
from arr_stream.sources.hardware import PREFERRED, Decoder, choose_decoder, failure
from arr_stream.sources.media import rgb_of
from tests.media import moving_frames, write_video

KINDS = hwdevices_available()


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_video(tmp_path / "a.mp4", moving_frames(4))


def choose(setting: str, works: tuple[str, ...] = ()) -> tuple[Decoder, list[str]]:
    """The choice where only these units decode, and what was tried."""
    tried: list[str] = []

    def trial(job: Job, hardware: str) -> str | None:
        tried.append(hardware)
        return None if hardware in works else "it is broken"

    return choose_decoder(Job([Path("a")], "a", hardware=setting), trial), tried


@pytest.fixture
def all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_stream.sources.hardware.hwdevices_available", lambda: ["opencl", *reversed(PREFERRED)])


def test_off_is_software_and_tries_nothing() -> None:
    decoder, tried = choose("off")
    assert decoder.accelerator() is None and str(decoder) == "software" and not tried


@pytest.mark.usefixtures("all_kinds")
def test_auto_takes_the_first_that_decodes_and_tells_of_the_others() -> None:
    decoder, tried = choose("auto", ("vaapi", "qsv"))
    assert decoder.hardware == "vaapi" and tried == ["cuda", "videotoolbox", "vaapi"]
    assert not decoder.strict, "software may take over what the unit cannot do"
    assert str(decoder) == "vaapi (cuda: it is broken; videotoolbox: it is broken)"


@pytest.mark.usefixtures("all_kinds")
def test_auto_falls_to_software_and_says_why() -> None:
    decoder, tried = choose("auto")
    assert decoder.accelerator() is None and tried == list(PREFERRED)
    assert str(decoder).startswith("software (cuda: it is broken; ")


def test_auto_without_any_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_stream.sources.hardware.hwdevices_available", lambda: [])
    assert str(choose("auto")[0]) == "software (this build of FFmpeg knows no hardware)"


@pytest.mark.usefixtures("all_kinds")
def test_what_is_asked_for_is_taken_or_refused() -> None:
    decoder, tried = choose("cuda:1", ("cuda:1",))
    assert decoder == Decoder("cuda:1", strict=True) and tried == ["cuda:1"]
    with pytest.raises(
        BackendUnavailable, match=r"source\.hardware=qsv.*it is broken; use --set source\.hardware=auto"
    ):
        choose("qsv", ("cuda",))


@pytest.mark.parametrize("setting", ["", "gpu", "on", ":1", "none"])
def test_unknown_hardware(setting: str, clip: Path) -> None:
    with pytest.raises(InvalidSetting, match="allowed are off, auto, "):
        open_source(clip, hardware=setting)


@pytest.mark.parametrize("setting", ["off", "auto"])
def test_a_source_says_who_decodes(clip: Path, setting: str) -> None:
    with open_source(clip, hardware=setting) as source, open_source(clip) as plain:
        decoder = source.info.decoder
        frames, expected = ([frame.rgb for frame in opened.frames()] for opened in (source, plain))
    assert decoder == "software" or setting == "auto"
    assert decoder.split(" ")[0] in ("software", *PREFERRED)
    assert len(frames) == len(expected) == 4
    for frame, other in zip(frames, expected, strict=True):
        # Units and software may round colour differently.
        assert np.abs(frame.astype(int) - other).mean() < 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_decodes_alike_or_is_refused(clip: Path, kind: str) -> None:
    problem = failure(Job([clip], "a.mp4"), kind)
    if problem is not None:
        with pytest.raises(BackendUnavailable, match=f"source.hardware={kind} cannot be used"):
            open_source(clip, hardware=kind)
        return
    with open_source(clip, hardware=kind) as source, open_source(clip) as plain:
        assert source.info.decoder == kind
        for frame, other in zip(source.frames(), plain.frames(), strict=True):
            assert frame.pts_seconds == other.pts_seconds
            assert np.abs(frame.rgb.astype(int) - other.rgb).mean() < 1.5


def test_interleaved_chroma_gives_the_colours_of_planes(clip: Path) -> None:
    with av.open(clip) as container:
        picture = next(container.decode(video=0))
        assert picture.format.name == "yuv420p"
        assert np.array_equal(rgb_of(picture.reformat(format="nv12")), rgb_of(picture))


def test_a_device_that_is_not_there(clip: Path) -> None:
    if "cuda" not in KINDS:
        pytest.skip("this build of FFmpeg knows no CUDA")
    with pytest.raises(BackendUnavailable, match="cuda:99"):
        open_source(clip, hardware="cuda:99")


def test_a_codec_that_no_unit_decodes(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", moving_frames(2), codec="ffv1")
    with open_source(path, hardware="auto") as source:
        assert source.info.decoder.startswith("software (")
        assert len(list(source.frames())) == 2
    for kind in KINDS:
        # A unit that is there says that it cannot; one that is not says that.
        assert failure(Job([path], "a.avi"), kind) is not None or kind == "vulkan"


def test_a_broken_file_is_still_a_broken_file(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"nothing")
    with pytest.raises(NotAMediaFile):
        open_source(tmp_path / "a.mp4", hardware="auto")
