"""Others' ways to choose cells, by name: published rules for dropping visual tokens, and the simplest ones."""

from __future__ import annotations

from benchmarks.rivals import background, change, plain
from benchmarks.rivals.base import Clip, Rule
from benchmarks.rivals.vidcom2 import vidcom2

__all__ = ["RULES", "Clip", "Rule"]

RULES: dict[str, Rule] = {
    "uniform": Rule("uniform grid", "nothing", plain.uniform_cells),
    "random": plain.random_rule(0),
    "scaled": Rule("whole frame scaled down", "nothing", plain.scaled_cells),
    "difference": Rule("frame difference", "pixels", change.frame_difference),
    "mog2": Rule("background model MOG2", "pixels", background.mog2),
    "knn": Rule("background model KNN", "pixels", background.knn),
    "evs": Rule("Efficient Video Sampling", "features", change.video_sampling, causal=False),
    "evs-per-frame": Rule("EVS per frame (our variant)", "features", change.sampling_per_frame),
    "dtd-pixel": Rule("Differential Token Drop, pixels", "pixels", change.differential_drop("pixels"), causal=False),
    "dtd-feature": Rule(
        "Differential Token Drop, features", "features", change.differential_drop("features"), causal=False
    ),
    "dtd-relative": Rule("Differential Token Drop, features, share of each frame", "features", change.relative_drop),
    "vidcom2": Rule("VidCom2", "features", vidcom2, causal=False),
}
