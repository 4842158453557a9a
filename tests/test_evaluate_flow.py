"""Flow on pairs with truth: both file formats, generated clips, and the plots of all evaluations."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from arr_stream.errors import EvaluationDataError, NotAMediaFile
from arr_stream.evaluation.coverage import METHODS, CoverageReport, CoverageRow
from arr_stream.evaluation.davis import load_sequences
from arr_stream.evaluation.plots import plot_coverage
from arr_stream.types import ByteArray, FloatArray
from benchmarks.carry import evaluate_carry, plot_carry
from benchmarks.flow import dis_reference, evaluate_flow, load_pairs, plot_flow, read_flo, read_kitti
from tests.media import data_folder
from tests.test_evaluate_davis import squares, write_sequence

SAMPLES = Path(__file__).resolve().parent.parent / "sample_videos"
SHIFT = (3.0, -1.5)


def _write_pair(folder: Path, kind: str, *, hole: bool = False) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    coarse = rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)
    first = cv2.resize(coarse, (128, 96), interpolation=cv2.INTER_CUBIC)
    second = cv2.warpAffine(
        first, np.array([[1, 0, SHIFT[0]], [0, 1, SHIFT[1]]]), (128, 96), borderMode=cv2.BORDER_REFLECT
    )
    cv2.imwrite(str(folder / "a.png"), first)
    cv2.imwrite(str(folder / "b.png"), second)
    flow = np.full((96, 128, 2), SHIFT, np.float32)
    if kind == "flo":
        if hole:
            flow[:10] = 1e10
        (folder / "truth.flo").write_bytes(struct.pack("<fii", 202021.25, 128, 96) + flow.astype("<f4").tobytes())
    else:
        picture = np.zeros((96, 128, 3), np.uint16)
        picture[..., 2], picture[..., 1] = (np.rint(flow[..., i] * 64 + 32768) for i in (0, 1))
        picture[..., 0] = 1
        if hole:
            picture[:10] = 0
        cv2.imwrite(str(folder / "flow.png"), picture)


def _shifted_by(u: float, v: float) -> FloatArray:
    return np.full((96, 128, 2), (u, v), np.float32)


def test_a_picture_that_is_none_is_named(tmp_path: Path) -> None:
    _write_pair(tmp_path / "pair", "flo")
    (tmp_path / "pair" / "b.png").write_bytes(b"none")
    with pytest.raises(NotAMediaFile, match=r"b\.png: not a picture"):
        load_pairs(tmp_path)


@pytest.mark.parametrize("kind", ["flo", "kitti"])
def test_error_is_the_distance_where_truth_is_known(tmp_path: Path, kind: str) -> None:
    _write_pair(tmp_path / "pair", kind, hole=True)
    (pair,) = load_pairs(tmp_path)
    assert pair.valid.mean() == pytest.approx(86 / 96)
    assert np.array_equal(pair.first, cv2.imread(str(tmp_path / "pair" / "a.png"))[..., ::-1])

    def off(first: ByteArray, second: ByteArray) -> FloatArray:
        found = _shifted_by(SHIFT[0] + 3, SHIFT[1] - 4)
        found[:10] = 1000
        return found

    report = evaluate_flow(
        [pair], {"exact": lambda *_: _shifted_by(*SHIFT), "off": off, "DIS": dis_reference("medium")}
    )
    error = {row.estimator: row.endpoint_error_px for row in report.rows}
    assert error["exact"] == 0.0 and error["off"] == pytest.approx(5.0)
    assert error["DIS"] < 0.5, "the flow is from the first picture to the second"
    assert report.rows[0].true_mean_px == pytest.approx(float(np.hypot(*SHIFT)))
    assert report.as_json()["pairs"][1]["endpoint_error_px"] == 5.0


def test_generated_clips_are_pairs_too(tmp_path: Path) -> None:
    for path in SAMPLES.glob("cut.*"):
        shutil.copy(path, tmp_path)
    pairs = load_pairs(tmp_path)
    assert [pair.name for pair in pairs] == ["cut 30", "cut 90"]
    report = evaluate_flow(
        pairs, {"DIS": dis_reference("medium"), "none": lambda a, _: np.zeros((*a.shape[:2], 2), np.float32)}
    )
    for dis, none in zip(report.rows[::2], report.rows[1::2], strict=True):
        assert dis.endpoint_error_px < 0.3 < none.endpoint_error_px == pytest.approx(none.true_mean_px)


@pytest.mark.parametrize("content", [b"", b"PIEH", struct.pack("<fii", 202021.25, 4, 4) + bytes(12), bytes(40)])
def test_a_damaged_flo_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.flo").write_bytes(content)
    with pytest.raises(EvaluationDataError, match=r"x\.flo"):
        read_flo(tmp_path / "x.flo")


def test_a_picture_that_holds_no_kitti_flow(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "flow.png"), np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(EvaluationDataError, match="16-bit"):
        read_kitti(tmp_path / "flow.png")


@pytest.mark.parametrize("spoil", ["missing", "empty", "one picture"])
def test_folders_without_pairs(tmp_path: Path, spoil: str) -> None:
    folder = tmp_path / "data"
    if spoil != "missing":
        folder.mkdir()
    if spoil == "one picture":
        _write_pair(folder / "pair", "flo")
        (folder / "pair" / "b.png").unlink()
    with pytest.raises(EvaluationDataError, match="expected"):
        load_pairs(folder)


@pytest.mark.data
def test_dis_on_the_known_pairs() -> None:
    report = evaluate_flow(load_pairs(data_folder("flow")), {"DIS": dis_reference("medium")})
    error = {row.pair: row.endpoint_error_px for row in report.rows}
    assert error["rubberwhale"] == pytest.approx(0.22, abs=0.03)
    assert error["chairs0"] == pytest.approx(1.76, abs=0.1)
    # Motion of up to 190 px: one level of rounding in the grey picture decides between 24 and 39 px.
    assert 20 < error["kitti_hard"] < 42


def _same_everywhere(path: Path) -> bool:
    picture = cv2.imread(str(path))
    assert picture is not None and min(picture.shape[:2]) > 300
    return float(picture.std()) < 5


def test_plots_show_something(tmp_path: Path) -> None:
    write_sequence(tmp_path, "a", squares(6))
    plot_carry(evaluate_carry(load_sequences(tmp_path), [3, 6]), tmp_path / "carry.png")
    rows = [CoverageRow(m, s, b, 0.2 * (i + 1), 0.1, b) for i, m in enumerate(METHODS) for s in "ab" for b in (40, 101)]
    plot_coverage(CoverageReport(tuple(rows)), tmp_path / "new" / "coverage.png")
    _write_pair(tmp_path / "pairs" / "one", "flo")
    plot_flow(evaluate_flow(load_pairs(tmp_path / "pairs"), {"DIS": dis_reference("fast")}), tmp_path / "flow.png")
    assert not any(_same_everywhere(tmp_path / p) for p in ("carry.png", "new/coverage.png", "flow.png"))
