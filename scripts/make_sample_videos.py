#!/usr/bin/env python3
"""Makes the clips of sample_videos and the exact ground truth beside each.

    scripts/make_sample_videos.py [--only NAME]... [--out DIR] [--seconds S] [--scale F]

The same versions of the libraries give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from arr_stream.evaluation.footage import tight_box  # noqa: E402
from benchmarks.scenes.layers import Scene, render, truth_of  # noqa: E402
from benchmarks.scenes.samples import FPS, SCENES  # noqa: E402
from benchmarks.scenes.shapes import moving_scene  # noqa: E402
from benchmarks.scenes.truth import SceneTruth, save_truth  # noqa: E402

AUDIO_RATE = 44_100
CRF = 21
SHAPES = "shapes"
SHAPES_SEED = (77, 8)
"""A red circle, a red arrow and others over a gradient: a colour alone does not tell them apart."""


@dataclass(frozen=True, eq=False)
class Clip:
    """A rendered scene before compression.

    Args:
        scene: What was rendered.
        frames: `[T, H, W, 3]` uint8.
        truth: Labels and maps.
    """

    scene: Scene
    frames: npt.NDArray[np.uint8]
    truth: SceneTruth


def make_scene(name: str, *, seconds: float = 4.0, scale: float = 1.0) -> Scene:
    """A named scene, `seconds` long, in a frame of `scale` times 640x360."""
    return SCENES[name](max(2, round(seconds * FPS))).resized(scale)


def make_clip(scene: Scene) -> Clip:
    """Renders a scene."""
    pairs = list(render(scene))
    labels = np.stack([labels for _, labels in pairs])
    return Clip(scene, np.stack([frame for frame, _ in pairs]), truth_of(scene, labels))


def write_clip(clip: Clip, folder: Path) -> tuple[Path, Path, Path]:
    """Writes `NAME.mp4`, `NAME.truth.npz` and `NAME.boxes.json`; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    video, truth, boxes = (folder / f"{clip.scene.name}.{kind}" for kind in ("mp4", "truth.npz", "boxes.json"))
    _encode(video, clip.frames, clip.scene.fps, tone=clip.scene.audio)
    save_truth(truth, clip.truth)
    boxes.write_text(json.dumps(first_boxes(clip.truth)) + "\n", encoding="utf-8")
    return video, truth, boxes


def first_boxes(truth: SceneTruth) -> dict[str, tuple[float, float, float, float]]:
    """The first object's box on each frame that shows it, as `arr-stream eval` and `tune` read it."""
    return {str(frame): tight_box(mask) for frame, mask in enumerate(truth.masks(1)) if mask.any()}


def write_shapes(folder: Path, *, seconds: float = 4.0, scale: float = 1.0) -> Path:
    """Writes `shapes.mp4`, a scene like those that the tiny encoder was trained on; it has no truth file."""
    folder.mkdir(parents=True, exist_ok=True)
    size_wh = (2 * round(320 * scale), 2 * round(180 * scale))
    clip = moving_scene(np.random.default_rng(SHAPES_SEED), size_wh, max(2, round(seconds * FPS)))
    video = folder / f"{SHAPES}.mp4"
    _encode(video, np.stack([scene.rgb for scene in clip]), FPS, tone=False)
    return video


def _encode(path: Path, frames: npt.NDArray[np.uint8], fps: int, *, tone: bool) -> None:
    # One thread and no shortcuts that depend on the processor: otherwise the same frames give different files.
    options = {"crf": str(CRF), "preset": "slow", "threads": "1", "x264-params": "cpu-independent=1"}
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as container:
        video = container.add_stream("libx264", rate=fps, options=options)
        video.height, video.width = frames.shape[1:3]
        video.pix_fmt = "yuv420p"
        audio = container.add_stream("aac", rate=AUDIO_RATE, options={"b": "64k"}) if tone else None
        for index, pixels in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            picture.pts, picture.time_base = index, Fraction(1, fps)
            container.mux(video.encode(picture))
        container.mux(video.encode(None))
        if audio is not None:
            for block in _chord(len(frames) / fps):
                container.mux(audio.encode(block))
            container.mux(audio.encode(None))


def _chord(seconds: float) -> list[av.AudioFrame]:
    """A quiet chord that swells and fades, as blocks of 1024 samples."""
    samples = round(seconds * AUDIO_RATE)
    t = np.arange(samples) / AUDIO_RATE
    swell = np.minimum(1, np.minimum(t, t[-1] - t) / 0.3) * (0.75 + 0.25 * np.sin(2 * np.pi * 0.5 * t))
    sound = sum(np.sin(2 * np.pi * pitch * t) for pitch in (220.0, 277.18, 329.63)) * swell * 0.03
    blocks = []
    for start in range(0, samples, 1024):
        part = np.asarray(sound[start : start + 1024], np.float32)[None]
        block = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
        block.sample_rate, block.pts, block.time_base = AUDIO_RATE, start, Fraction(1, AUDIO_RATE)
        blocks.append(block)
    return blocks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", choices=(*SCENES, SHAPES), help="make this clip alone; may be repeated"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "sample_videos", help="folder to write to (default %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a clip (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="1 gives 640x360 (default %(default)s)")
    args = parser.parse_args()
    for name in args.only or (*SCENES, SHAPES):
        if name == SHAPES:
            paths: tuple[Path, ...] = (write_shapes(args.out, seconds=args.seconds, scale=args.scale),)
        else:
            paths = write_clip(make_clip(make_scene(name, seconds=args.seconds, scale=args.scale)), args.out)
        print("  ".join(f"{path} {path.stat().st_size / 1000:.0f} kB" for path in paths), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
