"""Records in Parquet: the same records as in lines, whole or not there, and readable by others' tools."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.consumer import Outcome
from arr_stream.errors import DiskFull, EvaluationDataError, OutputExists, OutputUnwritable
from arr_stream.patch_set import Answer, Feeding
from arr_stream.records import parquet as module
from arr_stream.records.json_lines import Records, read_answers, read_records
from arr_stream.records.parquet import (
    CELLS,
    END_KEY,
    FRAMES,
    HEADER_KEY,
    ParquetRecords,
    read_parquet_answers,
    read_parquet_records,
)
from arr_stream.records.partitions import hive_folder
from arr_stream.records.schema import Header
from arr_stream.types import SCORERS, Frame, Grid
from tests.choices import choose, files_no_larger_than, frames_of, header, killed_after_consuming, without_cells
from tests.media import moving_frames

SIZE = (200, 120)
FRAMES_OF_SIZE = frames_of(moving_frames(6, SIZE))
HEADER = header()
ROOT = Path(__file__).parent.parent


def write(
    folder: Path, frames: list[Frame] = FRAMES_OF_SIZE, outcome: Outcome | None = None, header: Header = HEADER
) -> Path:
    records = ParquetRecords(folder, header)
    for frame in frames:
        records.consume(frame, choose(frame))
    records.close(outcome=outcome)
    return folder


words = st.text(st.characters(codec="utf-8"), max_size=12)
answers = st.builds(
    Answer,
    question=words,
    text=words,
    frame_index=st.integers(0, 99),
    pts_seconds=st.floats(0, 1e6),
    model=st.just("m"),
    fed=st.none(),
)
feedings = st.builds(
    Feeding,
    sent=st.integers(0, 500),
    cache_bytes=st.integers(0, 1 << 50),
    vision_ms=st.floats(0, 1e5),
    rebuilt=st.none() | st.just("cut"),
    error=st.none() | words,
)
changes_of_a_frame = st.fixed_dictionaries(
    {},
    optional={
        "confidence": st.floats(0, 1),
        "pts_seconds": st.floats(0, 1e7),
        "refresh_reason": st.none() | st.sampled_from(["first", "cut", "interval"]),
        "keyframe_index": st.none() | st.integers(0, 1 << 40),
        "parts": st.dictionaries(
            st.sampled_from(["clusters", "embedding", "text"]), st.tuples(st.integers(0, 999), words)
        ),
        "query_scores": st.lists(st.floats(0, 1), max_size=3).map(tuple),
        "latency_ms": st.dictionaries(words, st.floats(0, 1e6), max_size=3),
        "notices": st.lists(words, max_size=2).map(tuple),
        "quality": st.integers(0, 3),
        "grid": st.just(Grid.for_size((64, 64))),
        "feeding": st.none() | feedings,
        "answers": st.lists(answers, max_size=2).map(tuple),
    },
)


@settings(max_examples=12, deadline=None)
@given(changes=st.lists(changes_of_a_frame, min_size=1, max_size=3), empty=st.booleans(), timings=st.booleans())
def test_the_same_records_as_in_lines(changes: list[dict[str, Any]], empty: bool, timings: bool) -> None:
    frames = frames_of(moving_frames(len(changes), SIZE))
    chosen = [choose(frame, **change) for frame, change in zip(frames, changes, strict=True)]
    if empty:
        chosen[0] = without_cells(frames[0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writers = [
            Records(folder / "r.jsonl", header(), timings=timings),
            ParquetRecords(folder, header(), timings=timings),
        ]
        for writer in writers:
            for frame, patches in zip(frames, chosen, strict=True):
                writer.consume(frame, patches)
            writer.close(outcome=Outcome("damaged", 2, "broke off", {"refreshes": 3}))
        assert read_parquet_records(folder) == read_records(folder / "r.jsonl")
        assert read_parquet_answers(folder) == read_answers(folder / "r.jsonl")


def test_columns_are_what_they_are_called(tmp_path: Path) -> None:
    write(tmp_path)
    cells = pd.read_parquet(tmp_path / CELLS)
    patches = [choose(frame) for frame in FRAMES_OF_SIZE]
    assert cells["frame"].tolist() == [p.index for p in patches for _ in range(len(p))]
    np.testing.assert_allclose(
        cells[["x0", "y0", "x1", "y1"]], np.concatenate([p.cells_xyxy for p in patches]), atol=0.006
    )
    np.testing.assert_allclose(cells["score"], np.concatenate([p.score for p in patches]), atol=6e-5)
    assert cells["scorer"].tolist() == [SCORERS[scorer] for p in patches for scorer in p.scorer]
    assert cells["query"].fillna(-1).tolist() == [query for p in patches for query in p.query]
    assert cells["level"].tolist() == [level for p in patches for level in p.level]
    assert str(cells["scorer"].dtype) == "category"
    frames = pd.read_parquet(tmp_path / FRAMES)
    assert frames["num_cells"].tolist() == [len(p) for p in patches]
    assert frames["keyframe"].tolist() == [True, False, False, False, False, True]


def test_names_that_are_no_text_are_written_as_escapes(tmp_path: Path) -> None:
    name = b"caf\xe9.mp4".decode("utf-8", "surrogateescape")
    patches = choose(FRAMES_OF_SIZE[0], notices=(f"{name}: odd",), feeding=Feeding(error=name))
    for records in (
        ParquetRecords(tmp_path, header(source=name)),
        Records(tmp_path / "r.jsonl", header(source=name)),
    ):
        records.consume(FRAMES_OF_SIZE[0], patches)
        records.close()
    found, (frame,), end = read_parquet_records(tmp_path)
    assert found.source == name
    assert frame.notices == ["caf\\udce9.mp4: odd"]
    assert frame.model is not None and frame.model.error == "caf\\udce9.mp4"
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert end is not None and end.digest == json.loads(lines[-1])["digest"]
    assert found.source == json.loads(lines[0])["source"]


def test_both_files_bear_header_and_end_without_secrets(tmp_path: Path) -> None:
    address = "https://me:secret@host/x"
    write(tmp_path, outcome=Outcome("interrupted", error=f"lost {address}"), header=header(source=address))
    for name in (FRAMES, CELLS):
        assert b"secret" not in (tmp_path / name).read_bytes()
        metadata = pq.read_metadata(tmp_path / name).metadata
        assert Header.model_validate_json(metadata[HEADER_KEY]) == header(source="https://***@host/x")
        end = json.loads(metadata[END_KEY])
        assert (end["frames"], end["reason"]) == (6, "interrupted")
        assert pq.ParquetFile(tmp_path / name).metadata.row_group(0).column(0).compression == "ZSTD"


def test_groups_are_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FRAMES_A_GROUP", 4)
    monkeypatch.setattr(module, "_CELLS_A_GROUP", 30)
    frames = frames_of(moving_frames(11, SIZE))
    write(tmp_path, frames)
    for name, group in ((FRAMES, 4), (CELLS, 30 + 12)):
        metadata = pq.ParquetFile(tmp_path / name).metadata
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        assert len(sizes) > 2
        assert max(sizes) <= group
    _, records, _ = read_parquet_records(tmp_path)
    assert [len(record.cells) for record in records] == [len(choose(frame)) for frame in frames]


class TestTrouble:
    def test_files_are_kept_until_the_new_ones_are_whole(self, tmp_path: Path) -> None:
        write(tmp_path)
        before = (tmp_path / CELLS).read_bytes()
        records = ParquetRecords(tmp_path, header(), force=True)
        records.consume(FRAMES_OF_SIZE[0], choose(FRAMES_OF_SIZE[0]))
        assert (tmp_path / CELLS).read_bytes() == before, "not touched before the new one is whole"
        records.close()
        assert len(read_parquet_records(tmp_path)[1]) == 1

    def test_a_killed_run_leaves_no_broken_table(self, tmp_path: Path) -> None:
        killed_after_consuming(lambda: ParquetRecords(tmp_path, header()), FRAMES_OF_SIZE)
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"{CELLS}.partial", f"{FRAMES}.partial"]
        with pytest.raises(OutputExists, match="killed"):
            ParquetRecords(tmp_path, header())

    def test_a_full_disk_is_told_and_publishes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_CELLS_A_GROUP", 10)
        records = ParquetRecords(tmp_path, header())
        with files_no_larger_than(2_000):
            with pytest.raises(DiskFull, match="too large"):
                for frame in FRAMES_OF_SIZE:
                    records.consume(frame, choose(frame))
            with pytest.raises(DiskFull):
                records.close(failed=True)
        records.close(failed=True)
        assert not list(tmp_path.glob("*.parquet"))

    def test_what_is_no_number_is_never_written(self, tmp_path: Path) -> None:
        records = ParquetRecords(tmp_path, header())
        records.consume(FRAMES_OF_SIZE[0], choose(FRAMES_OF_SIZE[0]))
        with pytest.raises(ValueError, match=r"finite|compliant"):
            records.consume(FRAMES_OF_SIZE[1], choose(FRAMES_OF_SIZE[1], confidence=float("nan")))
        records.close(failed=True)
        _, frames, end = read_parquet_records(tmp_path)
        assert len(frames) == 1
        assert end is not None and end.reason == "failed"

    def test_a_place_that_will_not_do(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(OutputUnwritable):
            ParquetRecords(tmp_path / "file" / "x", header())

    def test_reading_what_is_not_there_or_damaged(self, tmp_path: Path) -> None:
        with pytest.raises(EvaluationDataError, match="no such file"):
            read_parquet_records(tmp_path)
        write(tmp_path)
        whole = (tmp_path / CELLS).read_bytes()
        middle = bytearray(whole)
        middle[60:90] = bytes(30)
        for damaged in (whole[: len(whole) // 2], bytes(middle), b""):
            (tmp_path / CELLS).write_bytes(damaged)
            with pytest.raises(EvaluationDataError, match=CELLS):
                read_parquet_records(tmp_path)

    def test_tables_that_do_not_belong_together(self, tmp_path: Path) -> None:
        write(tmp_path / "a")
        write(tmp_path / "b", FRAMES_OF_SIZE[:3])
        (tmp_path / "a" / CELLS).replace(tmp_path / "b" / CELLS)
        with pytest.raises(EvaluationDataError, match="more cells"):
            read_parquet_records(tmp_path / "b")
        pq.write_table(pa.table({"x": [1]}), tmp_path / "b" / FRAMES)
        with pytest.raises(EvaluationDataError, match="no header"):
            read_parquet_records(tmp_path / "b")


NAMES = ["plain", "a=b", "50%", "two words", "Zürich-東京", "007", "2024-01-02", "a%3Db", "q'uote", "x.y_z-1"]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("batch")
    for number, name in enumerate(NAMES, start=1):
        made = write(output / ".work" / str(number), FRAMES_OF_SIZE[: number % 3 + 1])
        for kind, file in (("frames", FRAMES), ("cells", CELLS)):
            place = output / kind / hive_folder(name)
            place.mkdir(parents=True)
            (made / file).replace(place / file)
    return output


class TestPartitions:
    """A folder a video, as a batch lays them out, read by others' tools."""

    def test_names_are_one_folder_each(self, output: Path) -> None:
        assert len(list((output / "frames").iterdir())) == len(NAMES)

    def test_pandas_gives_the_names_back(self, output: Path) -> None:
        by_text = ds.partitioning(pa.schema([("video", pa.string())]), flavor="hive")
        table = pd.read_parquet(output / "cells", partitioning=by_text)
        assert sorted(table["video"].unique()) == sorted(NAMES)

    @pytest.mark.parametrize("kind", ["frames", "cells"])
    def test_duckdb_gives_the_names_back(self, output: Path, kind: str) -> None:
        rows = duckdb.sql(
            f"SELECT video, count(*) FROM read_parquet('{output}/{kind}/*/*.parquet', hive_partitioning=true,"
            " hive_types={'video': VARCHAR}) GROUP BY video"
        ).fetchall()
        expected = {
            name: len(FRAMES_OF_SIZE[: number % 3 + 1])
            if kind == "frames"
            else sum(len(choose(frame)) for frame in FRAMES_OF_SIZE[: number % 3 + 1])
            for number, name in enumerate(NAMES, start=1)
        }
        assert dict(rows) == expected

    def test_one_video_of_a_batch(self, output: Path) -> None:
        for number, name in enumerate(NAMES, start=1):
            _, frames, end = read_parquet_records(output, name)
            assert len(frames) == number % 3 + 1
            assert end is not None and end.frames == len(frames)

    @pytest.mark.parametrize("script", ["read_parquet_pandas.py", "read_parquet_duckdb.py"])
    def test_examples(self, output: Path, script: str) -> None:
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / script, output],
            capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert all(name in done.stdout for name in NAMES)
        means = {
            name: np.mean([len(choose(frame)) for frame in FRAMES_OF_SIZE[: number % 3 + 1]])
            for number, name in enumerate(NAMES, start=1)
        }
        for line in done.stdout.splitlines():
            named = [name for name in NAMES if line.startswith(f"{name}  ")]
            if named:
                assert f"{means[named[0]]:.1f}" in line
