"""Examples as tensors, with the targets of the losses."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_stream.types import CELL_PX, FloatArray
from arr_stream.vlm.qwen3_vl.cells import (
    Cells,
    Normalisation,
    block_extent,
    patch_rows,
    text_positions,
    token_positions,
)
from arr_stream.vlm.qwen3_vl.prompt import Media, Prompt
from benchmarks.scenes.asking import Asked
from benchmarks.scenes.shapes import COLOURS, SHAPES
from benchmarks.scenes.stories import SIGN, SIGN_WORDS, Actor, cell_shares
from tiny_qwen.batches import Block, Example
from tiny_qwen.model import LOOKING_HEADS, LOOKING_LAYER, Seen, look

NORMALISATION = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_NAMES = list(COLOURS), [*SHAPES, SIGN], list(SIGN_WORDS)
_COMPARING, _COUNTING = ("beside", "above"), ("count", "total")
_SILHOUETTE = 4
_IGNORED = -100
_LEAST_SHARE = 0.12
_LETTERS = string.digits + string.ascii_uppercase
_LEGIBLE_PX = 20.0
"""Height of the smallest sign, as it is shown, whose letters can be told; that of a letter is less than half of it."""


class Words:
    """Token ids of prompts and answers."""

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self.prompt = Prompt(tokenizer, config)
        self._end = int(tokenizer.convert_tokens_to_ids("<|im_end|>"))
        self.opening = self.prompt.opening()

    @lru_cache(maxsize=50_000)  # noqa: B019 - one of these lives as long as the process
    def question(self, question: str) -> list[int]:
        return self.prompt.question(question)

    @lru_cache(maxsize=10_000)  # noqa: B019
    def answer(self, answer: str) -> list[int]:
        return [*self.prompt.text(answer), self._end]

    @lru_cache(maxsize=2_000)  # noqa: B019
    def before(self, media: Media, seconds: float) -> list[int]:
        return self.prompt.before_cells(media, seconds)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One example as the language model reads it.

    Args:
        ids: `[L]`, of cells their placeholder.
        positions: `[3, L]`.
        visual: `[L]` bool.
        part: `[L]`, 0 for what all questions see, then 1, 2, ... for each question and its answer.
        targets: `[L]`, the token that comes next where it is part of an answer.
        asked: `[A]`, behind which a token of an answer comes.
        wanted: `[A, heads, L]` bool, where taught heads are to look there: the cells of what is asked about.
        changes: What the given cells tell together.
    """

    ids: list[int]
    positions: Tensor
    visual: Tensor
    part: Tensor
    targets: Tensor
    asked: list[int]
    wanted: Tensor
    changes: Changes


def _sequence(example: Example, words: Words) -> _Sequence:
    ids: list[int] = []
    positions: list[Tensor] = []
    visual: list[bool] = []
    shares: list[FloatArray] = []
    places: list[npt.NDArray[np.int64]] = []
    at = 0.0

    def text(tokens: Sequence[int]) -> None:
        nonlocal at
        ids.extend(tokens)
        visual.extend([False] * len(tokens))
        positions.append(text_positions(len(tokens), at))
        at += len(tokens)

    text(words.opening)
    for block in example.blocks:
        media: Media = "image" if block.seconds is None else "video"
        text(words.before(media, block.seconds or 0.0))
        cells = block.encoded.select(block.kept.astype(np.int32))
        ids += [words.prompt.cell(media)] * len(cells)
        visual += [True] * len(cells)
        positions.append(token_positions(cells, at))
        at += block_extent(cells.grid_hw)
        shares.append(_shares(block, cells, len(example.story.actors)))
        places.append(cells.rows.astype(np.int64) * cells.grid_hw[1] + cells.columns)
        text(words.prompt.after_cells)
    part, targets, start = [0] * len(ids), [_IGNORED] * len(ids), at
    share, place = np.concatenate(shares, axis=1), np.concatenate(places)
    shows, newest = torch.from_numpy(share > _LEAST_SHARE), torch.from_numpy(_newest(place))
    seen = torch.tensor(visual)
    answered: list[int] = []
    wanted: list[Tensor] = []
    for number, asked in enumerate(example.asked, start=1):
        question, answer = words.question(asked.question), words.answer(asked.answer)
        at = start
        looked_at = torch.zeros(LOOKING_HEADS, len(seen), dtype=torch.bool)
        for head in range(LOOKING_HEADS):
            looked_at[head, seen] = _looked_at(asked, head, shows, newest)
        if asked.kind in _COUNTING:
            looked_at[1:] = True
        # Behind the last token of the question, and behind each of the answer's but the one before its end.
        answered += range(len(ids) + len(question) - 1, len(ids) + len(question) + len(answer) - 2)
        wanted += [looked_at] * (len(answer) - 1)
        text([*question, *answer[:-1]])
        part += [number] * (len(question) + len(answer) - 1)
        targets += [_IGNORED] * (len(question) - 1) + answer
    return _Sequence(
        ids,
        torch.cat(positions, dim=1),
        torch.tensor(visual),
        torch.tensor(part),
        torch.tensor(targets),
        answered,
        torch.stack(wanted),
        _changes(example, share, place),
    )


def _looked_at(asked: Asked, head: int, shows: Tensor, newest: Tensor) -> Tensor:
    """`[K]` bool, cells that a taught head looks at.

    Of two things that are compared each head has its own. Of what may have gone, one head has the thing, and the other
    what its places have shown last; where its name is the answer, both have that. To count, one head is free.

    Args:
        asked: The question.
        head: Which.
        shows: `[actors, K]` bool, which cells show which.
        newest: `[K]`, the last cell that shows the place of each.
    """
    actors = list(asked.actors)
    if asked.kind in _COMPARING:
        actors = actors[head % 2 :: 2]
    own = shows[actors].any(dim=0)
    if asked.kind != "left" and (asked.kind != "still" or head % 2 == 0):
        return own
    last = torch.zeros_like(own)
    last[newest[own]] = True
    return last


def _newest(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`[K]`: of each place the last index at which it comes."""
    _, of = np.unique(places, return_inverse=True)
    last = np.zeros(int(of.max(initial=-1)) + 1, np.int64)
    last[of] = np.arange(len(places))
    return last[of]


@dataclass(frozen=True, slots=True)
class Changes:
    """Facts that K given cells show only together.

    Args:
        was: `[K]` each: colour and shape of what the same place has shown before, as the classes of `CellTruth`.
        new: `[K]`, 1 where a thing came in after the beginning, 0 where it was there; -1 where there is none.
        gone: `[K]`, 1 where what was there has left the frame, 0 where not; -1 where nothing was.
    """

    was: tuple[Tensor, Tensor]
    new: Tensor
    gone: Tensor


def _changes(example: Example, shares: FloatArray, places: npt.NDArray[np.int64]) -> Changes:
    actors = example.story.actors
    frames = np.concatenate([np.full(len(block.kept), block.frame) for block in example.blocks])
    was = np.full((2, len(places)), _IGNORED, np.int64)
    new, gone = np.full((2, len(places)), -1, np.int64)
    shown: dict[int, int | None] = {}
    for k, place in enumerate(places.tolist() if len(example.blocks) > 1 else []):
        thing = int(shares[:, k].argmax())
        if place in shown:
            before = shown[place]
            was[:, k] = 0
            if before is not None:
                was[:, k] = names(actors[before])
                gone[k] = actors[before].frames[1] <= frames[k]
        if shares[thing, k] > _LEAST_SHARE:
            shown[place] = thing
            new[k] = actors[thing].frames[0] > 0
        else:
            shown.setdefault(place, None)
    return Changes((torch.from_numpy(was[0]), torch.from_numpy(was[1])), torch.from_numpy(new), torch.from_numpy(gone))


def _shares(block: Block, cells: Cells, actors: int) -> FloatArray:
    """`[actors, K]`: of each cell the share that shows each actor."""
    shares = cell_shares(block.labels, actors)
    found = [shares[:, y : y + high, x : x + wide].mean(axis=(1, 2)) for y, x, high, wide in cells.blocks.tolist()]
    return np.stack(found, axis=1)


@dataclass(frozen=True, slots=True)
class Read:
    """Output of the model.

    Args:
        scores: `[N, vocabulary]` at every token of every answer.
        targets: `[N]`.
        question: `[N]` index into all questions of the batch, example after example.
        features: `[K, D]` of all encoded cells, block after block.
        looks: `[M, heads]` how much of the attention of taught heads is on the cells of what is asked about, where the
            tokens of its answer come, of all questions about something.
        states: `[G, D]` of all given cells, before the layer that is taught where to look.
        changes: What those cells tell together, example after example.
    """

    scores: Tensor
    targets: Tensor
    question: Tensor
    features: Tensor
    looks: Tensor
    states: Tensor
    changes: tuple[Changes, ...]


def read(model: Any, words: Words, examples: Sequence[Example]) -> Read:
    """One pass of the tower, and behind it all questions side by side: none sees another."""
    blocks = [block for example in examples for block in example.blocks]
    rows = [patch_rows(block.first, block.second, block.encoded, NORMALISATION) for block in blocks]
    seen = look(model, rows, [block.encoded for block in blocks])
    given = _given(seen, blocks)
    sequences = [_sequence(example, words) for example in examples]
    batch, length = len(sequences), max(len(one.ids) for one in sequences)
    ids = torch.zeros(batch, length, dtype=torch.long)
    positions = torch.zeros(3, batch, length)
    visual = torch.zeros(batch, length, dtype=torch.bool)
    part = torch.full((batch, length), -1)
    targets = torch.full((batch, length), _IGNORED)
    for k, one in enumerate(sequences):
        n = len(one.ids)
        ids[k, :n] = torch.tensor(one.ids)
        positions[:, k, :n], visual[k, :n], part[k, :n], targets[k, :n] = (
            one.positions,
            one.visual,
            one.part,
            one.targets,
        )
    device = model.device
    ids, positions, visual, part, targets = (each.to(device) for each in (ids, positions, visual, part, targets))
    allowed = (part[:, None, :] == 0) | (part[:, :, None] == part[:, None, :])
    allowed &= torch.ones(length, length, dtype=torch.bool, device=device).tril()
    embedded = model.get_input_embeddings()(ids)
    embedded = embedded.masked_scatter(visual[:, :, None], given.features.to(embedded.dtype))
    told = model.model.language_model(
        inputs_embeds=embedded,
        position_ids=positions,
        attention_mask=allowed[:, None],
        use_cache=False,
        visual_pos_masks=visual,
        deepstack_visual_embeds=[level.to(embedded.dtype) for level in given.deepstack],
        output_hidden_states=True,
    )
    answers = targets != _IGNORED
    offsets = torch.tensor([0, *(len(example.asked) for example in examples)], device=device).cumsum(0)[:-1]
    question = (part + offsets[:, None] - 1)[answers]
    looking = model.model.language_model.layers[LOOKING_LAYER].self_attn
    return Read(
        model.lm_head(told.last_hidden_state[answers]),
        targets[answers],
        question,
        seen.features,
        _looks(looking, allowed, sequences),
        told.hidden_states[LOOKING_LAYER][visual],
        tuple(one.changes for one in sequences),
    )


def _looks(attention: Any, allowed: Tensor, sequences: Sequence[_Sequence]) -> Tensor:
    query, key = (part.float() for part in attention.looked)
    key = key.repeat_interleave(attention.num_key_value_groups, dim=1)[:, :LOOKING_HEADS]
    found = []
    for number, one in enumerate(sequences):
        about = one.wanted.any(dim=2).all(dim=1).to(query.device)
        asked = torch.tensor(one.asked, device=query.device)[about]
        scores = query[number, :LOOKING_HEADS, asked] @ key[number].transpose(1, 2) * attention.scaling
        scores = scores.masked_fill(~allowed[number, asked], -math.inf)
        wanted = one.wanted.to(query.device)[about].transpose(0, 1)
        found.append((scores.softmax(dim=-1)[..., : wanted.shape[2]] * wanted).sum(dim=-1).T)
    return torch.cat(found)


def _given(seen: Seen, blocks: Sequence[Block]) -> Seen:
    """Select the encoded features that the language model gets."""
    kept, start = [], 0
    for block in blocks:
        kept.append(torch.from_numpy(block.kept) + start)
        start += len(block.encoded)
    index = torch.cat(kept).to(seen.features.device)
    return Seen(seen.features[index], tuple(level[index] for level in seen.deepstack))


def right(found: Read) -> Tensor:
    """`[questions]` bool: every token of the answer is the likeliest."""
    hit = (found.scores.argmax(dim=-1) == found.targets).float()
    least = torch.ones(int(found.question.max()) + 1, device=hit.device)
    return least.scatter_reduce(0, found.question, hit, "amin") > 0


def answer_loss(found: Read) -> Tensor:
    return F.cross_entropy(found.scores.float(), found.targets, label_smoothing=0.02)


def look_loss(found: Read) -> Tensor:
    """Return the loss of the taught heads, which attend to the subject of an answer (after Liu et al., 2016)."""
    return -found.looks.clamp_min(1e-4).log().mean() if len(found.looks) else found.looks.sum()


class SideHeads(nn.Module):
    """Questions about each cell to what the tower makes of it (deep supervision; Lee et al., 2015).

    What thing it shows, of which colour and shape, whether it is the middle of it, which letters and which whole text
    are written there, where the cell is in the frame and where in the thing, how the thing moves, and which parts of
    the cell are its own. What has a name is told by likeness to the language model's own embedding of the name, as it
    stands in a question and as it begins an answer: so that what a cell shows and what it is called lie close from the
    start, and the words of a question find their cells. Everything else is asked of heads that are thrown away.
    """

    def __init__(self, model: Any, words: Words) -> None:
        super().__init__()
        width = model.config.text_config.hidden_size
        # Kept out of this module: it is the model's own.
        self._embedding = [model.get_input_embeddings()]
        self._ids = [
            [[words.prompt.text(before + name)[0] for name in names] for before in (" ", "")] for names in _NAMES
        ]
        self.scale = nn.Parameter(torch.full((len(_NAMES),), 3.0))
        self.nothing = nn.ModuleList(nn.Linear(width, 1) for _ in _NAMES)
        self.digits = nn.ModuleList(nn.Linear(width, 11) for _ in range(2))
        self.place = nn.Linear(width, 2)
        self.offset = nn.Linear(width, 2)
        self.motion = nn.Linear(width, 2)
        self.letters = nn.Linear(width, 2 * len(_LETTERS))
        self.silhouette = nn.Linear(width, _SILHOUETTE**2)
        self.anchor = nn.Linear(width, 1)
        self.was = nn.ModuleList(nn.Linear(width, 1 + len(names)) for names in _NAMES[:2])
        self.changed = nn.Linear(width, 2)

    def loss(self, features: Tensor, truth: CellTruth) -> Tensor:
        truth = truth.to(features.device)
        total = 20 * F.mse_loss(self.place(features).float(), truth.place)
        anchors = self.anchor(features).float()[:, 0]
        total = total + 2 * F.binary_cross_entropy_with_logits(anchors, truth.anchor)
        table = self._embedding[0].weight
        normed = F.normalize(features.float(), dim=-1)
        for number, (ids, target) in enumerate(zip(self._ids, truth.classes, strict=False)):
            if not bool((target >= 0).any()):
                continue
            for form in ids:
                likeness = normed @ F.normalize(table[form].float(), dim=-1).T * self.scale[number].exp()
                scores = torch.cat([self.nothing[number](features).float(), likeness], dim=1)
                total = total + F.cross_entropy(scores, target, ignore_index=_IGNORED) / len(ids)
        for head, target in zip(self.digits, truth.classes[len(_NAMES) :], strict=True):
            if bool((target >= 0).any()):
                total = total + F.cross_entropy(head(features).float(), target, ignore_index=_IGNORED)
        on = truth.classes[1] > 0
        if bool(on.any()):
            total = total + F.smooth_l1_loss(self.offset(features[on]).float(), truth.offset[on])
            total = total + F.smooth_l1_loss(self.motion(features[on]).float(), truth.motion[on])
        if bool(truth.fine.any()):
            total = total + F.binary_cross_entropy_with_logits(
                self.silhouette(features[truth.fine]).float(), truth.silhouette[truth.fine]
            )
        if bool(truth.legible.any()):
            scores = self.letters(features[truth.legible]).float()
            letters = F.binary_cross_entropy_with_logits(scores, truth.letters[truth.legible], reduction="none")
            total = total + 2 * letters.sum(dim=1).mean()
        return total / 4

    def change_loss(self, found: Read) -> Tensor:
        """Return the loss of a place's earlier content, and of new and gone things, from the model's own states."""
        device, states = found.states.device, found.states
        total = states.new_zeros((), dtype=torch.float32)
        for head, targets in zip(self.was, zip(*(one.was for one in found.changes), strict=True), strict=True):
            target = torch.cat(targets).to(device)
            if bool((target >= 0).any()):
                total = total + F.cross_entropy(head(states).float(), target, ignore_index=_IGNORED)
        changed = self.changed(states).float()
        for number, parts in enumerate(([one.new for one in found.changes], [one.gone for one in found.changes])):
            target = torch.cat(parts).to(device)
            if bool((known := target >= 0).any()):
                total = total + F.binary_cross_entropy_with_logits(changed[known, number], target[known].float())
        return total


@dataclass(frozen=True, slots=True)
class CellTruth:
    """Ground truth of each of K encoded cells.

    Args:
        classes: `[K]` each: colour, shape, word, tens and units; 0 for none.
        place: `[K, 2]` the cell's middle as a share of the frame, x and y.
        anchor: `[K]`, 1 where the middle of a thing is, by which things are counted.
        offset: `[K, 2]` from the cell's middle to the thing's, in half cells.
        motion: `[K, 2]` what the thing moves from one frame to the next, in eighths of a cell.
        fine: `[K]` bool, cells in full detail.
        silhouette: `[K, 16]` shares of the thing in the parts of a fine cell.
        legible: `[K]` bool, fine cells of signs whose letters are large enough to be told.
        letters: `[K, 2 * 36]`, 1 for each letter whose middle is in the left half of the cell, then in the right half.
    """

    classes: tuple[Tensor, ...]
    place: Tensor
    anchor: Tensor
    offset: Tensor
    motion: Tensor
    fine: Tensor
    silhouette: Tensor
    legible: Tensor
    letters: Tensor

    def to(self, device: torch.device) -> CellTruth:
        classes = tuple(part.to(device) for part in self.classes)
        rest = (getattr(self, field.name).to(device) for field in fields(self)[1:])
        return CellTruth(classes, *rest)


def cell_truth(examples: Sequence[Example]) -> CellTruth:
    parts = [_block_truth(example, block) for example in examples for block in example.blocks]
    classes, *rest = (torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True))
    return CellTruth(tuple(classes.T.contiguous()), *rest)


def _block_truth(example: Example, block: Block) -> tuple[npt.NDArray[Any], ...]:
    story, cells = example.story, block.encoded
    actors = story.actors
    rows, columns = cells.grid_hw
    shares = cell_shares(block.labels, len(actors))
    tiles = block.labels.reshape(rows, 4, 8, columns, 4, 8).transpose(0, 3, 1, 4, 2, 5)
    n = len(cells)
    classes = np.zeros((n, 5), np.int64)
    anchor = np.zeros(n, np.float32)
    offset, motion = np.zeros((n, 2), np.float32), np.zeros((n, 2), np.float32)
    silhouette = np.zeros((n, _SILHOUETTE**2), np.float32)
    fine = cells.level <= 0
    legible, letters = np.zeros(n, bool), np.zeros((n, 2, len(_LETTERS)), np.float32)
    scale = columns * CELL_PX / story.size_wh[0]
    middles = [actor.middle_xy[block.frame] * scale / CELL_PX for actor in actors]
    for k, (row, column, height, width) in enumerate(cells.blocks.tolist()):
        share = shares[:, row : row + height, column : column + width].mean(axis=(1, 2))
        thing = int(share.argmax()) if len(share) else 0
        if not len(share) or share[thing] < _LEAST_SHARE:
            if len(share) and share[thing] > 0.02:
                classes[k] = _IGNORED
            continue
        actor = actors[thing]
        classes[k] = _classes(actor.colour, actor.shape, actor.text)
        offset[k] = middles[thing] - (column + width / 2, row + height / 2)
        anchor[k] = row <= middles[thing][1] < row + height and column <= middles[thing][0] < column + width
        motion[k] = _motion(actor, block.frame) * scale * 8 / CELL_PX
        if fine[k]:
            silhouette[k] = (tiles[row, column] == thing + 1).mean(axis=(2, 3)).ravel()
            legible[k] = bool(actor.text) and actor.diameter_px * scale >= _LEGIBLE_PX
            if legible[k] and row <= middles[thing][1] < row + 1:
                for letter, far in zip(actor.text, actor.letters_px, strict=True):
                    half = math.floor(2 * (middles[thing][0] + far * scale / CELL_PX - column))
                    if half in (0, 1):
                        letters[k, half, _LETTERS.index(letter)] = 1
    blocks = cells.blocks.astype(np.float32)
    place = (blocks[:, 1::-1] + blocks[:, :1:-1] / 2) / (columns, rows)
    offset = np.clip(offset, -6, 6) / 2
    parts = (classes, place.astype(np.float32), anchor, offset, np.clip(motion, -4, 4), fine, silhouette, legible)
    return *parts, letters.reshape(n, -1)


@lru_cache(maxsize=10_000)
def _classes(colour: str, shape: str, text: str) -> tuple[int, ...]:
    word = _NAMES[2].index(text) + 1 if text in _NAMES[2] else 0
    tens = int(text[0]) + 1 if text.isdigit() and len(text) == 2 else 0
    units = int(text[-1]) + 1 if text.isdigit() else 0
    return _NAMES[0].index(colour) + 1, _NAMES[1].index(shape) + 1, word, tens, units


def names(actor: Actor) -> tuple[int, int]:
    """Return the actor's colour and shape, as classes."""
    return _NAMES[0].index(actor.colour) + 1, _NAMES[1].index(actor.shape) + 1


def _motion(actor: Actor, frame: int) -> FloatArray:
    moved = actor.middle_xy[frame] - actor.middle_xy[frame - 1] if frame > actor.frames[0] else np.zeros(2)
    return moved.astype(np.float32)


def by_kind(asked: Sequence[Asked], hit: Tensor) -> dict[str, tuple[int, int]]:
    """Return for each kind the right answers and the questions."""
    found: dict[str, tuple[int, int]] = {}
    for one, good in zip(asked, hit.tolist(), strict=True):
        before = found.get(one.kind, (0, 0))
        found[one.kind] = before[0] + int(good), before[1] + 1
    return found
