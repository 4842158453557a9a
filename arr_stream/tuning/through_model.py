"""Fit of the scorers' weights to a model's answers: a choice is worth the likelihood of the right answer.

The model receives every cell of a picture. The logarithm of each cell's share in a soft choice is added to the
attention to it, as mode `weight` does with relevance, so that the gradient of the answer's likelihood reaches the
scorers' weights. The weights are evaluated by right answers to held-out questions, asked as `eval questions` asks them:
with the chosen cells only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Event

import numpy as np
import torch
from torch import Tensor

from arr_stream.config import ScoringSettings, Settings
from arr_stream.errors import EvaluationDataError, InvalidSetting
from arr_stream.evaluation.answers import WHOLE, Condition, Outcome, ask_questions, viewers
from arr_stream.evaluation.questions import Question
from arr_stream.relevance.scorers import Sample
from arr_stream.sources import open_source
from arr_stream.stream import Models
from arr_stream.tuning.fitting import Fit, Objective, fit, frame_scores, hard_topk, soft_choice
from arr_stream.tuning.gain import Gain
from arr_stream.tuning.parameters import check_names
from arr_stream.tuning.recording import look
from arr_stream.tuning.tuner import VALIDATION_PART, Progress, TuneOptions
from arr_stream.types import ByteArray
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells, patch_rows, texture_picture
from arr_stream.vlm.qwen3_vl.encoding import LEAST_WEIGHT
from arr_stream.vlm.qwen3_vl.loading import LoadedModel, load
from arr_stream.vlm.qwen3_vl.places import block_extent, text_positions, token_positions
from arr_stream.vlm.qwen3_vl.prompt import Prompt

_HELD_OUT = 0.5
"""Share of the pictures that are held out."""
_UNSEEN = -1e4


@dataclass(frozen=True, slots=True, eq=False)
class AskedPicture:
    """Picture, question and answer, prepared for the model.

    Args:
        sample: Inputs of the scorers.
        answered: Highest relevance of any cell.
        fine: Fine cells that the budget is spent on.
        embeddings: `[N, D]` of everything up to the answer's last token.
        positions: `[3, N]`.
        cells: `[N]` bool, True for tokens of cells.
        deepstack: `[cells, D]` each.
        answer: Tokens of the answer and the one that ends it.
    """

    sample: Sample
    answered: float
    fine: int
    embeddings: Tensor
    positions: Tensor
    cells: Tensor
    deepstack: tuple[Tensor, ...]
    answer: tuple[int, ...]


class Reader:
    """Model that scores the likelihood of right answers, for any shares of the cells.

    Args:
        loaded: The model.
        instruction: Same as `vlm.instruction`.
    """

    def __init__(self, loaded: LoadedModel, instruction: str = "") -> None:
        self._adapter = Adapter(loaded.model)
        self._adapter.need_bias("tuning through a model")
        self._prompt = Prompt(loaded.tokenizer, self._adapter.config)
        self._normalisation = loaded.normalisation
        self._opening = self._prompt.opening(instruction)
        self.objective: Objective[AskedPicture] = Objective(self._soft, self._hard)

    def prepared(self, asked: Question, picture: ByteArray, settings: Settings, models: Models) -> AskedPicture:
        """Return the data of one question that do not depend on the weights."""
        sample, patches = look(picture, asked.queries, settings, models)
        grid = patches.grid
        cells = Cells.whole((grid.rows, grid.columns))
        shown = texture_picture(picture, grid.texture_wh)
        before = [*self._opening, *self._prompt.before_cells("image", 0.0)]
        answer = (*self._prompt.text(asked.answers[0]), self._prompt.next_turn[0])
        after = [*self._prompt.after_cells, *self._prompt.question(asked.text), *answer[:-1]]
        start = len(before)
        with torch.no_grad():
            tokens = self._adapter.encode(patch_rows(shown, shown, cells, self._normalisation), cells, [len(cells)])
            words = self._adapter.embed([*before, *after])
        embeddings = torch.cat([words[:start], tokens.features.to(words), words[start:]])
        places = [
            text_positions(start, 0),
            token_positions(cells, start),
            text_positions(len(after), start + block_extent(cells.grid_hw)),
        ]
        visual = torch.zeros(len(embeddings), dtype=torch.bool)
        visual[start : start + len(cells)] = True
        fine = int((patches.level <= 0).sum())
        if not 0 < fine < len(cells):
            raise InvalidSetting(
                f"line {asked.line}: the budget shows the whole picture or none of it in detail",
                remedy="set --budget to a share of the picture, such as 10%",
            )
        answered = float(sample.relevance.max())
        return AskedPicture(
            sample, answered, fine, embeddings, torch.cat(places, dim=1), visual, tokens.deepstack, answer
        )

    def _soft(self, asked: Sequence[AskedPicture], weights: ScoringSettings, temperature: float) -> Tensor:
        found = []
        for one in asked:
            share = soft_choice(frame_scores([one], weights), torch.tensor([float(one.fine)]), temperature)[0]
            found.append(self.log_likelihood(one, share.clamp_min(LEAST_WEIGHT).log()))
        return torch.stack(found).mean()

    @torch.no_grad()
    def _hard(self, cases: Sequence[Sequence[AskedPicture]], weights: ScoringSettings) -> float:
        means = []
        for case in cases:
            found = []
            for one in case:
                chosen = hard_topk(frame_scores([one], weights), torch.tensor([float(one.fine)]))[0]
                found.append(float(self.log_likelihood(one, (1 - chosen) * _UNSEEN)))
            means.append(float(np.mean(found)))
        return float(np.mean(means))

    def log_likelihood(self, one: AskedPicture, bias_of_cells: Tensor) -> Tensor:
        """Return the mean over the answer's tokens of the logarithm of their probability."""
        bias = torch.zeros(len(one.embeddings)).masked_scatter(one.cells, bias_of_cells)
        cache = self._adapter.new_cache()
        hidden = self._adapter.extend(cache, one.embeddings, one.positions, one.cells, one.deepstack, bias)
        logs = self._adapter.logits(hidden[-len(one.answer) :]).log_softmax(dim=-1)
        return logs[torch.arange(len(one.answer)), list(one.answer)].mean()


@dataclass(frozen=True, slots=True)
class TunedAnswers:
    """Weights before and after, and right answers with both.

    Args:
        model: Its name.
        start, weights: Before and after; equal if no weights did better on the validation questions.
        fit: The fit that made them.
        budget: Tokens, as in the settings.
        fitted: Questions that were fitted to.
        before, after: Outcomes of the held-out questions.
        whole: Outcomes of the same questions with all cells.
    """

    model: str
    start: ScoringSettings
    weights: ScoringSettings
    fit: Fit
    budget: str
    fitted: int
    before: tuple[Outcome, ...]
    after: tuple[Outcome, ...]
    whole: tuple[Outcome, ...]

    @property
    def gain(self) -> Gain:
        """Gain in right answers to held-out questions."""
        return Gain.of([b.right - a.right for a, b in zip(self.before, self.after, strict=True)], "questions")


def tune_through_model(
    questions: Sequence[Question],
    settings: Settings,
    options: TuneOptions,
    progress: Progress = lambda what, done, of: None,
) -> TunedAnswers:
    """Fit the scorers' weights to answers about one part of some pictures, and test them on the other.

    Args:
        questions: Questions about pictures; those about videos are left out.
        settings: `vlm` names the model; the weights to start from, and everything else.
        options: `names`, `fit` (whose seed is also that of the division) and `in_time` are used.
        progress: Called after every question and every validation.

    Raises:
        EvaluationDataError: There are too few questions, or a picture cannot be read.
        InvalidSetting: A server instead of a local model, or a budget that leaves nothing to choose.
        UnknownSetting: A weight does not exist.
    """
    check_names(options.names)
    if settings.vlm.endpoint:
        raise InvalidSetting("a server's model has no gradient", remedy="name a model of your own")
    pictures = [each for each in questions if not each.video]
    fitted, held_out = _divided(pictures, options)
    loaded = load(settings.vlm, settings.models)
    reader = Reader(loaded, settings.vlm.instruction)
    cases = _prepared(fitted, reader, settings, progress)
    validation = max(1, len(cases) // VALIDATION_PART)

    def advance(step: int, steps: int, worth: float) -> bool:
        progress(f"fit: a right answer's token at {math.exp(worth):.3f}", step, steps)
        return options.in_time()

    found = fit(
        [cases[validation:]],
        [cases[:validation]],
        settings.scoring,
        options.fit,
        objective=reader.objective,
        names=options.names,
        advance=advance,
    )
    new_viewer, ours = viewers(settings, loaded), Condition("ours", settings.selection.budget)

    def asked(settings: Settings, condition: Condition, what: str) -> tuple[Outcome, ...]:
        def tell(_: str, done: int, of: int) -> None:
            progress(f"held out, {what}", done, of)

        asking = ask_questions(held_out, new_viewer, settings, [condition], stop=Event(), progress=tell)
        return tuple(each for each in asking if isinstance(each, Outcome))

    before, whole = asked(settings, ours, "untuned"), asked(settings, Condition("all", WHOLE), "all cells")
    after = before
    if found.weights != settings.scoring:
        after = asked(settings.model_copy(update={"scoring": found.weights}), ours, "tuned")
    return TunedAnswers(
        loaded.name, settings.scoring, found.weights, found, ours.budget, len(fitted), before, after, whole
    )


def _divided(questions: Sequence[Question], options: TuneOptions) -> tuple[list[Question], list[Question]]:
    """Divide questions by picture: no picture is both fitted to and held out."""
    sources = list(dict.fromkeys(each.source for each in questions))
    drawn = np.random.default_rng(options.fit.seed).permutation(len(sources))[: round(_HELD_OUT * len(sources))]
    kept = {sources[index] for index in drawn.tolist()}
    fitted = [each for each in questions if each.source not in kept]
    held_out = [each for each in questions if each.source in kept]
    if len(fitted) < VALIDATION_PART or not held_out:
        raise EvaluationDataError(
            f"{len(fitted)} questions to fit to and {len(held_out)} to hold out",
            remedy="give questions about several pictures, some hundreds of them",
        )
    return fitted, held_out


def _prepared(
    questions: Sequence[Question], reader: Reader, settings: Settings, progress: Callable[[str, int, int], None]
) -> list[AskedPicture]:
    models, found = Models.load(settings), []
    for number, asked in enumerate(questions):
        progress("looking", number, len(questions))
        with closing(open_source(asked.source, max_pixels=settings.source.max_pixels)) as source:
            picture = next(source.frames()).rgb
        found.append(reader.prepared(asked, picture, settings, models))
    return found
