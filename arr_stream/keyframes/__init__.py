"""Full generation on keyframes: clusters, embedding and text, in step or in a worker process."""

from arr_stream.keyframes.base import (
    PARTS,
    Clusterer,
    Embedder,
    KeyframeInput,
    KeyframePart,
    PartName,
    TextEncoder,
    TextFinder,
    TextFinding,
)
from arr_stream.keyframes.generate import (
    InStepKeyframes,
    KeyframeFailure,
    KeyframeGenerator,
    KeyframeProvider,
    KeyframeRequest,
    StandardGenerator,
    make_generator,
)
from arr_stream.keyframes.worker import KeyframeWorker, KeyframeWorkers

__all__ = [
    "PARTS",
    "Clusterer",
    "Embedder",
    "InStepKeyframes",
    "KeyframeFailure",
    "KeyframeGenerator",
    "KeyframeInput",
    "KeyframePart",
    "KeyframeProvider",
    "KeyframeRequest",
    "KeyframeWorker",
    "KeyframeWorkers",
    "PartName",
    "StandardGenerator",
    "TextEncoder",
    "TextFinder",
    "TextFinding",
    "make_generator",
]
