"""What fuzzing has found, each as a small input that is answered as it should be."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from arr_stream.batch.folder import Layout
from arr_stream.batch.job import Done
from arr_stream.batch.plan import check_options
from arr_stream.config import Settings
from arr_stream.errors import (
    ArrStreamError,
    BatchDiffers,
    EvaluationDataError,
    InvalidSetting,
    PresetNotFound,
    SourceNotFound,
    UnknownSetting,
)
from arr_stream.plain_text import redact_url
from arr_stream.records.json_lines import read_records
from arr_stream.relevance.query import parse_text
from arr_stream.sources import open_source
from arr_stream.sources.damage import is_broken
from arr_stream.sources.live.spec import is_live_spec, parse_spec
from arr_stream.sources.locate import public_name
from arr_stream.sources.media import next_of
from tests.conftest import Run
from tests.media import moving_frames, write_video

DEEP = "[" * 100_000
LONG_NUMBER = "1" * 5000


def test_errors_are_lines_that_a_terminal_can_bear() -> None:
    error = ArrStreamError("a\n\x1b[31mb\x00 \u202ec\udcff" + "x" * 10_000 + "end", remedy="y" * 900)
    text = str(error)
    assert len(text) <= 500 and text.isprintable()
    assert text.startswith("a \\x1b[31mb\\x00 \\u202ec\\udcffxxx") and "xend; yyy" in text
    assert " ... " in error.message and error.remedy is not None and " ... " in error.remedy
    assert text == f"{error.message}; {error.remedy}"


def test_records_nested_too_deep(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(DEEP + "\n")
    with pytest.raises(EvaluationDataError, match="line 1: not JSON"):
        read_records(path)


@pytest.mark.parametrize("text", [f"a = {DEEP}", f"[keyframes]\ninterval = {LONG_NUMBER}", "# " + "x" * (1 << 20)])
def test_presets_beyond_what_can_be_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "preset.toml"
    path.write_text(text)
    with pytest.raises(PresetNotFound):
        Settings.load(path)


@pytest.mark.parametrize("value", [DEEP, LONG_NUMBER])
def test_values_beyond_what_can_be_read(value: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Settings.load(overrides=[f"keyframes.interval={value}"])
    assert len(str(caught.value)) <= 500
    with pytest.raises(UnknownSetting):
        Settings.load(overrides=[f"{'a' * 10_000}\x1b={value}"])


def test_presets_include_files_alone(tmp_path: Path) -> None:
    path = tmp_path / "preset.toml"
    os.mkfifo(tmp_path / "pipe.toml")
    for included in ("/dev/zero", "pipe.toml", ".", "x" * 300, "a\\u0000b"):
        path.write_text(f'include = "{included}"')
        with pytest.raises(PresetNotFound):
            Settings.load(path)


def test_names_that_no_file_can_have() -> None:
    for name in ("a" * 5000 + ".mp4", "x/" * 3000, f"{'[' * 30_000}*"):
        with pytest.raises(SourceNotFound) as caught:
            open_source(name)
        assert len(str(caught.value)) <= 500
    address = f"rtsp://camera/{'a' * 5000}"
    assert is_live_spec(address) and parse_spec(address).target == address
    with pytest.raises(SourceNotFound, match="no address"):
        open_source("file://[::-inf]/clip.mp4")


def test_a_file_whose_name_is_no_text_is_processed_like_any_other(tmp_path: Path, run: Run) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff\x1b.mp4")
    write_video(Path(path), moving_frames(3))
    made = ("-o", tmp_path / "o.mp4", "--patches", tmp_path / "o.jsonl", "--report", tmp_path / "report")
    code, _, err = run("process", path, *made, "--set", "keyframes.text=none")
    assert code == 0, err
    header, frames, _ = read_records(tmp_path / "o.jsonl")
    assert header.source.endswith("/odd\\udcff\\x1b.mp4") and len(frames) == 3
    json.loads((tmp_path / "report" / "summary.json").read_text(encoding="utf-8"))
    code, _, err = run("process", path.replace("odd", "add"), "-o", tmp_path / "no.mp4")
    assert code == SourceNotFound.exit_code and err.count("\n") == 1 and "\x1b" not in err


def test_a_file_whose_name_is_no_text_is_done_once(tmp_path: Path, run: Run) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.mp4")
    write_video(Path(path), moving_frames(3))
    for _ in range(2):
        code, _, err = run("batch", path, "-o", tmp_path / "out", "--jobs", 1, "--set", "keyframes.text=none")
        assert code == 0, err
    assert len(list((tmp_path / "out").glob("videos/*"))) == 1


def test_clusters_in_clusters_end_the_check_of_a_file() -> None:
    def element(identity: bytes, body: bytes) -> bytes:
        return identity + (len(body) | 1 << 56).to_bytes(8) + body

    cluster, checksum = bytes.fromhex("1F43B675"), b"\xbf\x84"
    body = b""
    for _ in range(3000):
        body = element(cluster, checksum + zlib.crc32(body).to_bytes(4, "little") + body)
    film = io.BytesIO(element(bytes.fromhex("1A45DFA3"), b"") + element(bytes.fromhex("18538067"), body))
    assert is_broken(film, "matroska,webm")


def test_streams_that_appear_on_the_way_end_a_film_like_any_other() -> None:
    def demuxed() -> Iterator[int]:
        yield 1
        raise IndexError("list index out of range")  # As PyAV does when it drains a stream that it does not know.

    packets = demuxed()
    assert (next_of(packets), next_of(packets), next_of(packets)) == (1, None, None)


def test_secrets_are_looked_for_in_texts_of_any_length() -> None:
    """Each of these took minutes: expressions that began anew at every letter."""
    assert public_name("a" * 200_000 + "://user:secret@host/x") == "a" * 200_000 + "://host/x"
    assert "secret" not in redact_url("http://host/?" + "pass" * 20_000 + " http://host/?token=secret")


def test_queries_longer_than_anybody_would_write() -> None:
    assert parse_text("red " * 100).terms
    with pytest.raises(InvalidSetting, match="at most 2000"):
        parse_text("red " * 10_000)


@pytest.mark.parametrize("change", [{"mean": [[1], 2, 3]}, {"mean": [1, 2]}, {"std": "abc"}])
def test_a_clip_folder_with_odd_statistics(tmp_path: Path, change: dict[str, object]) -> None:
    pytest.importorskip("open_clip")
    from arr_stream.config import ClipSettings, ModelSettings
    from arr_stream.keyframes.embeddings.openclip import CONFIG_NAME, load_clip

    (tmp_path / "model.safetensors").write_bytes(b"x")
    for text in (json.dumps({"model_cfg": {}, "preprocess_cfg": change}), DEEP):
        (tmp_path / CONFIG_NAME).write_text(text)
        with pytest.raises(InvalidSetting, match="not a configuration of open_clip"):
            load_clip(ClipSettings(model=str(tmp_path)), ModelSettings())


def test_options_and_results_of_a_batch_that_are_none(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.options.write_text(DEEP)
    with pytest.raises(BatchDiffers):
        check_options(layout, {})
    assert Done.read(layout.options) is None
