"""Saves the chosen crops of every frame of a video as arrays.

pip install arr-stream
python examples/crops.py street.mp4 red crops.npz
"""

from __future__ import annotations

import sys

import numpy as np

import arr_stream


def main(video: str, query: str, output: str) -> None:
    crops, levels, frame_indices = [], [], []
    for patches in arr_stream.open(video, query=query, budget="10%"):
        crops.append(patches.crops(64))
        levels.append(patches.level)
        frame_indices.append(np.full(len(patches), patches.index))
    np.savez_compressed(
        output,
        crops=np.concatenate(crops),  # [N, 64, 64, 3] uint8
        level=np.concatenate(levels),
        frame=np.concatenate(frame_indices),
    )
    print(f"{sum(map(len, crops))} crops of {len(crops)} frames")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} VIDEO QUERY OUTPUT.npz")
    main(*sys.argv[1:])
