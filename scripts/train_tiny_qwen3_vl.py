#!/usr/bin/env python3
"""Train the tiny Qwen3-VL that answers questions about drawn shapes and signs, in about two hours on two cores.

    python scripts/train_tiny_qwen3_vl.py --minutes 150 --seed 0 -o FOLDER [--resume]

The model is transformers' own Qwen3-VL, small; its tower starts from that of the tiny CLIP. It learns from stories
(`benchmarks/scenes/stories.py`) and questions about them (`benchmarks/scenes/asking.py`):

- of most stories it sees a part: the cells of some things, with others or alone, random or even ones, fine and coarse
  ones together, the frame scaled down, or some tokens of a tower that saw all. The truth is what remains visible;
- clips come as pairs of frames with their times, as the product shows them, with or without the cells that have not
  changed since;
- six to twenty questions of a story are read in one pass, side by side behind it; none sees another;
- what each cell shows, and where it is, is asked as well, of heads that are thrown away (`losses.SideHeads`), and two
  heads of the language model are taught to look at what is asked about (`losses.look_loss`);
- what a place showed before, what is new and what is gone is asked of the language model's states in the same way;
- stories grow from 20 cells with one thing to 240 with seven, as answers get right and as time goes by.

Training, tuning and reporting use other seeds, other photographs behind the things, and other wordings. Ctrl-C stops
early and keeps what there is; `--resume` goes on from there.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from rich.progress import Progress as Bar
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT / "scripts", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from tiny_qwen.batches import Example, Lesson, Showing, Source, shown  # noqa: E402
from tiny_qwen.losses import SideHeads, Words, answer_loss, by_kind, cell_truth, look_loss, read, right  # noqa: E402
from tiny_qwen.model import save, starting_model, tokenizer_of_questions  # noqa: E402
from training import Interruption, Means, Together, optimisers, run, set_rate  # noqa: E402

from benchmarks.scenes.asking import questions  # noqa: E402
from benchmarks.scenes.stories import Purpose, Story, clip_story, picture_story  # noqa: E402

CELLS = 500
"""Encoded cells of a step, about; what the language model reads counts as well."""
_SIDE_WEIGHT, _LOOK_WEIGHT, _CHANGE_WEIGHT = 1.0, 0.3, 0.2
_GOOD = 0.8, 0.68
"""Running shares of right answers above which lessons grow harder, at the first and at the last level."""
_RISE, _MEMORY = 0.0012, 0.02
"""How much harder a step, and how much the last step counts in the running share."""
_SLOWEST = 0.15, 0.75
"""Shares of the time from which and until which lessons grow harder whatever is right."""
_STATE = "training.pt"
_TUNING_SIZES = ((8, 6), (12, 7), (20, 12))


def train(rank: int, args: argparse.Namespace) -> None:
    """One process of the training; the first one reports and saves."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    folder: Path = args.output
    interruption = Interruption()
    together = Together(rank, args.processes, folder / ".meeting")
    # What is asked may have been worded anew since.
    tokenizer = AutoTokenizer.from_pretrained(folder) if args.resume else tokenizer_of_questions()  # type: ignore[no-untyped-call]
    model = starting_model(tokenizer, args.seed).to(args.device)
    words = Words(tokenizer, model.config)
    side_heads = SideHeads(model, words).to(args.device)
    made = _optimisers(model, side_heads, args)
    at = _resumed(folder / _STATE, model, side_heads, made) if args.resume else _Point()
    parameters = [*(p for p in model.parameters() if p.requires_grad), *side_heads.parameters()]
    source = Source(np.random.default_rng([args.seed, rank, at.step]))
    shared = np.random.default_rng([args.seed, 1000, at.step])
    means, started, before, saved = Means(), time.monotonic(), at.minutes, at.minutes
    spent = at.minutes / args.minutes
    with Bar(disable=rank != 0) as bar:
        task = bar.add_task("training", total=1.0)
        while spent < 1.0:
            set_rate(made, at.step, spent)
            for optimiser in made:
                optimiser.zero_grad(set_to_none=True)
            examples = source.step(Lesson(at.level), args.cells, shared)
            with torch.autocast(args.device, torch.bfloat16):
                found = read(model, words, examples)
                answers = answer_loss(found)
                cells = side_heads.loss(found.features, cell_truth(examples))
                looks = look_loss(found)
                changes = side_heads.change_loss(found)
            (answers + _SIDE_WEIGHT * cells + _LOOK_WEIGHT * looks + _CHANGE_WEIGHT * changes).backward()
            at.step += 1
            at.minutes = before + (time.monotonic() - started) / 60
            share = float(right(found).float().mean())
            spent = math.inf if interruption.asked else at.minutes / args.minutes
            spent, share = together.average(parameters, spent, share)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for optimiser in made:
                optimiser.step()
            at.learn(share, at.minutes / args.minutes)
            means.note(
                [
                    ("answers", float(answers.detach())),
                    ("cells", float(cells.detach())),
                    ("looks", float(looks.detach())),
                    ("changes", float(changes.detach())),
                ]
            )
            bar.update(task, completed=min(1.0, spent))
            if rank == 0 and at.step % 50 == 0:
                bar.console.print(f"{at}: {means}", highlight=False)
            if rank == 0 and at.minutes - saved > args.save_every:
                saved = at.minutes
                _keep(folder, model, tokenizer, side_heads, made, at)
                bar.console.print(json.dumps(figures(model, words, "tuning", args.seed, 30)), highlight=False)
    if rank == 0:
        if math.isinf(spent):
            print("stopped early; --resume goes on from here", flush=True)
        _keep(folder, model, tokenizer, side_heads, made, at)
        for name, found_share in figures(model, words, "reporting", args.seed, args.stories).items():
            print(f"{name:30} {found_share}", flush=True)


@dataclass
class _Point:
    """Progress of the training.

    Args:
        step, minutes: Since the beginning, those before a resumption included.
        level: How hard the lessons are, 0 to 1: it rises whenever most answers are right.
        right: Running share of right answers.
    """

    step: int = 0
    minutes: float = 0.0
    level: float = 0.0
    right: float = 0.0

    def learn(self, share: float, spent: float) -> None:
        self.right += _MEMORY * (share - self.right)
        if self.right > _GOOD[0] + self.level * (_GOOD[1] - _GOOD[0]):
            self.level += _RISE
        by_the_clock = (spent - _SLOWEST[0]) / (_SLOWEST[1] - _SLOWEST[0])
        self.level = min(1.0, max(self.level, by_the_clock))

    def __str__(self) -> str:
        return f"{self.minutes:6.1f} min, step {self.step}, level {self.level:.2f}, right {self.right:.3f}"


def _optimisers(model: Any, side_heads: SideHeads, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    inside = {id(p) for name, p in named if p.ndim == 2 and "embed" not in name and "lm_head" not in name}
    matrices = [p for _, p in named if id(p) in inside]
    rest = [p for p in [*(p for _, p in named), *side_heads.parameters()] if id(p) not in inside]
    return optimisers(matrices, rest, lr=args.lr, muon_lr=args.muon_lr)


def _keep(folder: Path, model: Any, tokenizer: Any, side_heads: SideHeads, made: list[Any], at: _Point) -> None:
    save(model, tokenizer, folder)
    state = {
        "model": model.state_dict(),
        "side_heads": side_heads.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in made],
        "at": asdict(at),
    }
    partial = folder / f"{_STATE}.part"
    torch.save(state, partial)
    partial.replace(folder / _STATE)


def _resumed(path: Path, model: Any, side_heads: SideHeads, made: list[Any]) -> _Point:
    state = torch.load(path, weights_only=True, map_location="cpu")
    model.load_state_dict(state["model"])
    side_heads.load_state_dict(state["side_heads"])
    for optimiser, kept in zip(made, state["optimisers"], strict=True):
        rates = [group["full_lr"] for group in optimiser.param_groups]
        optimiser.load_state_dict(kept)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["full_lr"] = rate
    return _Point(**state["at"])


@torch.no_grad()
def figures(model: Any, words: Words, purpose: Purpose, seed: int, stories: int) -> dict[str, str]:
    """Share of right answers by kind, all cells given; wordings and photographs are not those of training."""
    model.eval()
    rng = np.random.default_rng([seed, {"training": 1, "tuning": 2, "reporting": 3}[purpose]])
    found: dict[str, tuple[int, int]] = {}
    for size in _TUNING_SIZES:
        size_wh = size[0] * 32, size[1] * 32
        for _ in range(stories):
            _ask(
                model,
                words,
                rng,
                picture_story(rng, size_wh, (2, 6), purpose=purpose),
                "all",
                f"{size[0]}x{size[1]} ",
                found,
            )
    for _ in range(stories):
        _ask(model, words, rng, clip_story(rng, (256, 160), 10, (2, 4), purpose=purpose), "clip", "clip ", found)
    model.train()
    return {name: f"{good / count:.3f} of {count}" for name, (good, count) in sorted(found.items())}


def _ask(
    model: Any,
    words: Words,
    rng: np.random.Generator,
    story: Story,
    showing: Showing,
    name: str,
    found: dict[str, tuple[int, int]],
) -> None:
    if not story.actors:
        return
    blocks, seen = shown(rng, story, showing)
    asked = questions(story, rng, seen=seen, held_out=True)
    asked = [asked[int(k)] for k in rng.permutation(len(asked))[:16]]
    if not asked or not blocks:
        return
    with torch.autocast(str(model.device.type), torch.bfloat16):
        hit = right(read(model, words, [Example(story, tuple(blocks), tuple(asked))]))
    for kind, (good, count) in by_kind(asked, hit).items():
        before = found.get(name + kind, (0, 0))
        found[name + kind] = before[0] + good, before[1] + count


def arguments(argv: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the model")
    parser.add_argument("--minutes", type=float, default=150.0, help="when to stop (default: 150)")
    parser.add_argument("--resume", action="store_true", help="go on with what lies in the folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="processes of one thread each (default: 2)")
    parser.add_argument("--cells", type=int, default=CELLS, help=f"of a step and process (default: {CELLS})")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; with cuda, one process")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--muon-lr", type=float, default=3e-3)
    parser.add_argument("--save-every", type=float, default=6.0, help="minutes between checkpoints")
    parser.add_argument("--stories", type=int, default=200, help="of each size that the last figures are taken on")
    return parser.parse_args(None if argv is None else list(argv))


def main() -> None:
    args = arguments()
    if args.resume and not (args.output / _STATE).is_file():
        sys.exit(f"{args.output}: holds no {_STATE} to go on from; start without --resume")
    if args.device != "cpu":
        args.processes = 1
    args.output.mkdir(parents=True, exist_ok=True)
    run(train, args, args.processes, args.output / ".meeting")


if __name__ == "__main__":
    main()
