"""Full generation on keyframes: clusters, embedding and text, in step or in a worker process."""

from arr_stream.keyframes.base import Clusterer, Embedder, KeyframeInput, TextFinder, TextFinding
from arr_stream.keyframes.generate import (
    InStepKeyframes,
    KeyframeFailure,
    KeyframeGenerator,
    KeyframeProvider,
    KeyframeRequest,
    StandardGenerator,
    make_generator,
)
from arr_stream.keyframes.worker import KeyframeWorker

__all__ = [
    "Clusterer",
    "Embedder",
    "InStepKeyframes",
    "KeyframeFailure",
    "KeyframeGenerator",
    "KeyframeInput",
    "KeyframeProvider",
    "KeyframeRequest",
    "KeyframeWorker",
    "StandardGenerator",
    "TextFinder",
    "TextFinding",
    "make_generator",
]
