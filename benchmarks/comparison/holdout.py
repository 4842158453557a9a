"""Weights for footage that nothing was fitted on: each data set is given those that were fitted to the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from arr_stream.config import ScoringSettings, Settings
from arr_stream.errors import InvalidSetting
from arr_stream.evaluation.davis import Sequence as Masked
from arr_stream.tuning.fitting import Case, fit
from arr_stream.tuning.footage import Footage as Asked
from arr_stream.tuning.recording import run
from arr_stream.tuning.tuner import VALIDATION_PART, check_strategy, fitted_frames
from arr_stream.types import BoolArray
from benchmarks.scenes.footage import CAMERA_KINDS, Footage

FIT_BUDGET = "10%"
"""Tokens a frame that weights are fitted at, as by `arr-stream tune`; one set serves all budgets, like the defaults."""
FIT_FRAMES = 300
"""First frames of a clip that are fitted to."""


def data_set(clip: Footage) -> str:
    """Return the data set of real footage, such as `cdnet` of `cdnet_highway`; nothing for other footage."""
    if clip.kind == "davis":
        return clip.kind
    return clip.name.partition("_")[0].rstrip("0123456789") if clip.kind in CAMERA_KINDS else ""


def held_out_weights(
    clips: Sequence[Footage], settings: Settings, progress: Callable[[str], None] = lambda _: None
) -> dict[str, ScoringSettings]:
    """Fit the scorers' weights for each data set to the others, without a query.

    A fit starts from the weights that were set by hand (preset `untuned`): the defaults were chosen with such footage
    in view.

    Args:
        clips: Of at least two data sets; footage that is not real, and clips whose object is seldom known, are left
            alone.
        settings: Everything but the weights.
        progress: Told what comes next.

    Raises:
        InvalidSetting: Fewer than two data sets, or a strategy that weights are not fitted to.
    """
    values = {"selection.budget": FIT_BUDGET, "selection.per_second": 0.0}
    by_hand = Settings.load("untuned").scoring
    start = settings.with_values(values).model_copy(update={"scoring": by_hand})
    check_strategy(settings)
    cases: dict[str, list[Case]] = defaultdict(list)
    for clip in clips:
        if data_set(clip) and _seen(clip):
            progress(f"recording {clip.kind}: {clip.name}")
            cases[data_set(clip)].append(run(_asked(clip), "nothing", start, tables=True).tables)
    if len(cases) < 2:
        raise InvalidSetting(f"--holdout: {len(cases)} data sets of real footage", remedy="give two or more")
    weights = {}
    for left_out in sorted(cases):
        progress(f"fitting to all data sets but {left_out}")
        shown = [case for name in sorted(cases) if name != left_out for case in cases[name]]
        parts = [fitted_frames(len(case)) for case in shown]
        training = [case[:part] for case, part in zip(shown, parts, strict=True)]
        validation = [case[part:] for case, part in zip(shown, parts, strict=True)]
        weights[left_out] = fit(training, validation, by_hand).weights
    return weights


def _known(clip: Footage) -> list[BoolArray | None]:
    """Return the object on the first frames; None where nothing is counted."""
    truths = islice(clip.truths(), FIT_FRAMES)
    return [None if index < clip.learning_frames else each.object for index, each in enumerate(truths)]


def _seen(clip: Footage) -> bool:
    """Return whether the object is known on as many frames as a fit needs."""
    return sum(each is not None and bool(each.any()) for each in _known(clip)) >= VALIDATION_PART


def _asked(clip: Footage) -> Asked:
    """Return a clip as tuning takes it: where nothing is counted, nothing is there."""

    def masks() -> list[BoolArray]:
        known = _known(clip)
        nothing = next(np.zeros_like(each) for each in known if each is not None)
        return [nothing if each is None else each for each in known]

    return Asked(Masked(clip.name, Path(clip.name), lambda: list(islice(clip.frames(), FIT_FRAMES)), masks))
