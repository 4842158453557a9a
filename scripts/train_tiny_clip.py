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
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
import open_clip
import torch
import torch.distributed
import torch.multiprocessing
from open_clip.tokenizer import SimpleTokenizer
from rich.progress import Progress as Bar

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT / "scripts", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from tiny_clip.batches import SIZES_WH, Lesson, draw_batch  # noqa: E402
from tiny_clip.figures import held_out, write_directions  # noqa: E402
from tiny_clip.losses import Losses, SideHeads, losses  # noqa: E402
from tiny_clip.model import model_config, save, starting_model  # noqa: E402
from tiny_clip.words import CONTEXT, Texts, write_vocabulary  # noqa: E402

TOKENS_A_STEP = 4700


def optimisers(model: open_clip.CLIP, side_heads: SideHeads, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices where asked for (Jordan et al., 2024), AdamW for the rest."""
    in_blocks = {id(p) for p in model.visual.transformer.parameters() if args.muon and p.ndim == 2}
    matrices = [p for p in model.parameters() if id(p) in in_blocks]
    rest = [p for p in [*model.parameters(), *side_heads.parameters()] if id(p) not in in_blocks]
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [
                {"params": [p for p in rest if p.ndim >= 2], "weight_decay": 0.05},
                {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=args.lr,
            betas=(0.9, 0.98),
        )
    ]
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=args.muon_lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["full_lr"] = group["lr"]
    return made


class Together:
    """Two or more processes of one thread each that share their gradients once a step.

    On a machine with other work this is much faster than one process of two threads, which wait for each other in every
    operation.
    """

    def __init__(self, rank: int, processes: int, meeting_place: Path) -> None:
        self.rank, self.processes = rank, processes
        if processes > 1:
            store = torch.distributed.FileStore(str(meeting_place), processes)
            torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)

    def average(self, parameters: Sequence[torch.nn.Parameter], spent: float) -> float:
        """Makes all gradients the mean over processes; returns the mean of `spent` too, so that all stop together."""
        if self.processes == 1:
            return spent
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([torch.tensor([spent]), *(g.reshape(-1) for g in grads)])
        torch.distributed.all_reduce(flat)
        flat /= self.processes
        at = 1
        for parameter in parameters:
            parameter.grad = flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        return float(flat[0])


class Progress:
    """Running means of the losses, and the clocks."""

    def __init__(self) -> None:
        self._start, self._cpu_start = time.monotonic(), time.process_time()
        self._mean: dict[str, float] = {}

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._start) / 60

    @property
    def cpu_minutes(self) -> float:
        return (time.process_time() - self._cpu_start) / 60

    def note(self, found: Losses) -> None:
        for name in ("sigmoid", "choice", "picture", "side_heads"):
            value = float(getattr(found, name).detach())
            self._mean[name] = 0.95 * self._mean.get(name, value) + 0.05 * value

    def line(self, step: int) -> str:
        parts = " ".join(f"{name} {value:.3f}" for name, value in self._mean.items())
        return f"{self.minutes:5.1f} min, cpu {self.cpu_minutes:5.1f}, step {step}: {parts}"


class Interruption:
    """Ctrl-C as a flag: a process that stopped within a step would leave the others waiting for its gradients."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def train(rank: int, args: argparse.Namespace) -> None:
    """One process of the training; the first one reports and saves."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    folder: Path = args.output
    interruption = Interruption()
    together = Together(rank, args.processes, folder / ".meeting")
    tokenizer = SimpleTokenizer(bpe_path=str(folder / "bpe.txt.gz"), context_length=CONTEXT)
    texts = Texts(tokenizer)
    config = model_config(tokenizer.vocab_size, args)
    model = starting_model(config, args)
    side_heads = SideHeads(args.width, config["embed_dim"], [0, 1, 2], [args.layers - 3, args.layers - 2])
    made = optimisers(model, side_heads, args)
    parameters = [*model.parameters(), *side_heads.parameters()]
    rng, shared = np.random.default_rng([args.seed, rank]), np.random.default_rng(args.seed)
    progress = Progress()
    spent, step, saved = 0.0, 0, 0.0
    with Bar(disable=rank != 0) as bar:
        task = bar.add_task("training", total=1.0)
        while spent < 1.0:
            set_rate(made, step, spent)
            size = SIZES_WH[int(shared.integers(len(SIZES_WH)))]
            batch = draw_batch(rng, size, Lesson.at(spent), args.tokens // args.processes)
            for optimiser in made:
                optimiser.zero_grad(set_to_none=True)
            found = losses(model, side_heads, batch, texts, rng)
            found.total(args).backward()
            step += 1
            spent = step / args.steps if args.steps else progress.minutes / args.minutes
            spent = together.average(parameters, math.inf if interruption.asked else spent)
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


def set_rate(made: Sequence[torch.optim.Optimizer], step: int, spent: float) -> None:
    """Warm-up over 100 steps, then level, then down along a cosine to 2% over the last 0.6 of the time."""
    fall = max(0.0, (spent - 0.4) / 0.6)
    factor = min(1.0, (step + 1) / 100) * max(0.02, 0.5 + 0.5 * math.cos(math.pi * fall))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["lr"] = group["full_lr"] * factor


def arguments(argv: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the model")
    parser.add_argument("--minutes", type=float, default=40.0, help="when to stop (default: 40)")
    parser.add_argument(
        "--steps", type=int, default=0, help="stop after so many steps instead, the same on any machine"
    )
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
    return parser.parse_args(None if argv is None else list(argv))


def main() -> None:
    args = arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    write_vocabulary(args.output, args.seed)
    meeting_place = args.output / ".meeting"
    meeting_place.unlink(missing_ok=True)
    try:
        if args.processes == 1:
            train(0, args)
        else:
            # The processes that train hear Ctrl-C themselves; this one waits until they have saved.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            torch.multiprocessing.spawn(train, args=(args,), nprocs=args.processes)
    finally:
        meeting_place.unlink(missing_ok=True)
    print(f"{'variance that 16 directions keep':42} {write_directions(args.output, args.seed):.3f}", flush=True)


if __name__ == "__main__":
    main()
