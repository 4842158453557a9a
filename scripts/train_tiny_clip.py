#!/usr/bin/env python3
"""Train the tiny dual encoder on generated scenes, in minutes on two cores.

    python scripts/train_tiny_clip.py --minutes 40 --seed 0 -o FOLDER

The model is a small CLIP of open_clip's own classes (a vision transformer and a text transformer). What is trained is
what is used: the dense value path of the last block (MaskCLIP; Zhou, Loy and Dai, "Extract Free Dense Labels from
CLIP", 2022), so that a text matches the places that it is about. Four losses, all on freshly generated scenes:

- every token against a batch of phrases, as independent yes-or-no questions (the sigmoid loss of SigLIP: Zhai et al.,
  2023); a token has several true phrases, from "something" to "small striped red circle";
- every token of a thing against the bare words of each kind of attribute, as a choice of one;
- questions about each token's thing to the blocks below, with heads that are thrown away afterwards (deep supervision;
  Lee et al., 2015): attributes, centre, which tokens around belong to it, and its silhouette. Without them colours are
  learned at once and shapes hardly at all: a colour lies in each pixel, a shape must be gathered from the outline;
- whole pictures against captions, contrastively, on the pooled feature.

Batches vary in shape: parts of a frame of 28x16 tokens, whose positions they take, now and then of a larger frame with
interpolated positions, so that the model can be used at other sizes. Ctrl-C stops early and keeps what there is.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np
import open_clip
import torch
from open_clip.tokenizer import SimpleTokenizer
from rich.progress import Progress as Bar
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT / "scripts", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from tiny_clip.batches import SIZES_WH, Lesson, draw_batch  # noqa: E402
from tiny_clip.figures import held_out, write_directions  # noqa: E402
from tiny_clip.losses import Losses, SideHeads, losses  # noqa: E402
from tiny_clip.model import WEIGHTS, model_config, save, starting_model  # noqa: E402
from tiny_clip.words import CONTEXT, VOCABULARY, Texts, write_vocabulary  # noqa: E402
from training import Interruption, Means, Together, optimisers, run, set_rate  # noqa: E402

TOKENS_A_STEP = 4700


def own_optimisers(
    model: open_clip.CLIP, side_heads: SideHeads, args: argparse.Namespace
) -> list[torch.optim.Optimizer]:
    in_blocks = {id(p) for p in model.visual.transformer.parameters() if args.muon and p.ndim == 2}
    matrices = [p for p in model.parameters() if id(p) in in_blocks]
    rest = [p for p in [*model.parameters(), *side_heads.parameters()] if id(p) not in in_blocks]
    return optimisers(matrices, rest, lr=args.lr, muon_lr=args.muon_lr)


class Progress:
    """Running means of the losses, and the clocks."""

    def __init__(self) -> None:
        self._start, self._cpu_start = time.monotonic(), time.process_time()
        self._means = Means()

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._start) / 60

    @property
    def cpu_minutes(self) -> float:
        return (time.process_time() - self._cpu_start) / 60

    def note(self, found: Losses) -> None:
        names = ("sigmoid", "choice", "picture", "side_heads")
        self._means.note((name, float(getattr(found, name).detach())) for name in names)

    def line(self, step: int) -> str:
        return f"{self.minutes:5.1f} min, cpu {self.cpu_minutes:5.1f}, step {step}: {self._means}"


def train(rank: int, args: argparse.Namespace) -> None:
    """One process of the training; the first one reports and saves."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    folder: Path = args.output
    interruption = Interruption()
    together = Together(rank, args.processes, folder / ".meeting")
    tokenizer = SimpleTokenizer(bpe_path=str(folder / VOCABULARY), context_length=CONTEXT)
    texts = Texts(tokenizer)
    config = model_config(tokenizer.vocab_size, args)
    model = starting_model(config, args)
    if args.start is not None:
        model.load_state_dict(load_file(str(args.start / WEIGHTS)))
    side_heads = SideHeads(args.width, config["embed_dim"], [0, 1, 2], [args.layers - 3, args.layers - 2])
    made = own_optimisers(model, side_heads, args)
    parameters = [*model.parameters(), *side_heads.parameters()]
    rng, shared = np.random.default_rng([args.seed, rank]), np.random.default_rng(args.seed)
    progress = Progress()
    spent, step, saved = 0.0, 0, 0.0
    with Bar(disable=rank != 0) as bar:
        task = bar.add_task("training", total=1.0)
        while spent < 1.0:
            set_rate(made, step, spent)
            size = SIZES_WH[int(shared.integers(len(SIZES_WH)))]
            batch = draw_batch(rng, size, Lesson.at(1.0 if args.start else spent), args.tokens // args.processes)
            for optimiser in made:
                optimiser.zero_grad(set_to_none=True)
            found = losses(model, side_heads, batch, texts, rng)
            found.total(args).backward()
            step += 1
            spent = step / args.steps if args.steps else progress.minutes / args.minutes
            (spent,) = together.average(parameters, math.inf if interruption.asked else spent)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for optimiser in made:
                optimiser.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(40))
            progress.note(found)
            bar.update(task, completed=min(1.0, spent))
            if rank == 0 and step % 50 == 0:
                bar.console.print(progress.line(step), highlight=False)
            if rank == 0 and progress.minutes - saved > args.save_every:
                saved = progress.minutes
                save(model, config, folder)
                bar.console.print(json.dumps(held_out(model, tokenizer, 20, args.seed)), highlight=False)
    if rank == 0:
        if math.isinf(spent):
            print("stopped early; keeping what there is", flush=True)
        print(progress.line(step), flush=True)
        save(model, config, folder)
        for name, value in held_out(model, tokenizer, args.scenes, args.seed).items():
            print(f"{name:42} {value:.3f}", flush=True)


def arguments(argv: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the model")
    parser.add_argument("--minutes", type=float, default=40.0, help="when to stop (default: 40)")
    parser.add_argument(
        "--steps", type=int, default=0, help="stop after so many steps instead, the same on any machine"
    )
    parser.add_argument("--start", type=Path, help="folder of a model to go on from, on the hardest lessons")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="processes of one thread each (default: 2)")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--head-width", type=int, default=32)
    parser.add_argument("--mlp-ratio", type=float, default=4.0)
    parser.add_argument("--tokens", type=int, default=TOKENS_A_STEP)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--muon-lr", type=float, default=4e-3)
    parser.add_argument("--muon", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--side_heads", type=float, default=0.5)
    parser.add_argument("--save-every", type=float, default=4.0, help="minutes between checkpoints")
    parser.add_argument("--scenes", type=int, default=60, help="held-out scenes")
    args = parser.parse_args(None if argv is None else list(argv))
    if args.start is not None and not all((args.start / name).is_file() for name in (WEIGHTS, VOCABULARY)):
        parser.error(f"--start {args.start}: {WEIGHTS} and {VOCABULARY} are not both there")
    return args


def main() -> None:
    args = arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    if args.start is None:
        write_vocabulary(args.output, args.seed)
    else:
        shutil.copyfile(args.start / VOCABULARY, args.output / VOCABULARY)
    run(train, args, args.processes, args.output / ".meeting")
    print(f"{'variance that 16 directions keep':42} {write_directions(args.output, args.seed):.3f}", flush=True)


if __name__ == "__main__":
    main()
