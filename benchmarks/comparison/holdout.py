"""Weights for sequences that nothing was fitted on: each half is given those that were fitted to the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from arr_stream.config import ScoringSettings, Settings
from arr_stream.errors import InvalidSetting
from arr_stream.evaluation.davis import Sequence as Masked
from arr_stream.tuning.footage import Footage as Asked
from arr_stream.tuning.tuner import TuneOptions, tune
from benchmarks.scenes.footage import Footage

FIT_BUDGET = "10%"
"""Tokens a frame that weights are fitted at, as by `arr-stream tune`; one set serves all budgets, like the defaults."""


def held_out_weights(
    clips: Sequence[Footage], settings: Settings, progress: Callable[[str], None] = lambda _: None
) -> dict[str, ScoringSettings]:
    """The scorers' weights for each clip, by its name, fitted to the half that it is not in.

    A fit starts from the weights that were set by hand (preset `untuned`): the defaults were chosen with such footage
    in view.

    Args:
        clips: With a mask of the object on every frame.
        settings: Everything but the weights.
        progress: Told what comes next.

    Raises:
        EvaluationDataError: A clip that is too short, or shows its object too seldom.
        InvalidSetting: Fewer than two clips, or settings that weights are not fitted to.
    """
    if len(clips) < 2:
        raise InvalidSetting(
            f"--holdout: {len(clips)} sequences with masks", remedy="give two or more, in frames/SEQ and masks/SEQ"
        )
    values = {"selection.budget": FIT_BUDGET, "selection.per_second": 0.0}
    by_hand = {"scoring": Settings.load("untuned").scoring}
    start = settings.with_values(values).model_copy(update=by_hand)
    weights: dict[str, ScoringSettings] = {}
    for half in ("half", "other-half"):
        progress(f"fitting to half of {len(clips)} sequences")
        report = tune([_asked(clip) for clip in clips], start, TuneOptions(hold_out=(half,)))
        weights |= {clip.name: report.weights for clip in report.division.held_out}
    return weights


def _asked(clip: Footage) -> Asked:
    """A clip as tuning takes it."""
    return Asked(
        Masked(
            clip.name,
            Path(clip.name),
            lambda: list(clip.frames()),
            lambda: [truth.object for truth in clip.truths() if truth.object is not None],
        )
    )
