"""Words of the tiny dual encoder: its vocabulary, and the templates that phrases are put into."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from open_clip.tokenizer import SimpleTokenizer

from benchmarks.scenes.shapes import COLOURS, SHAPES, TEXTURES, caption, make_scene
from benchmarks.scenes.stories import SIGN

NOUNS = (*SHAPES, SIGN)
"""What a thing can be."""
CONTEXT = 32
"""Tokens a text, with its start and end."""
VOCABULARY = "bpe.txt.gz"

SYNONYMS = {"circle": "disc", "ring": "hoop", "cross": "plus", "square": "box", "arrow": "pointer"}
GENERIC = ("something", "an object", "a thing", "a shape", "objects", "things", "shapes", "any object")
BACKGROUND = ("background", "the background", "nothing", "empty space", "a background")
TEMPLATES = (
    "{}", "{}", "a {}", "the {}", "a photo of a {}", "a picture of a {}", "find the {}", "where is the {}", "one {}",
    "there is a {}", "an image of the {}", "look at the {}", "a {} in the scene", "{}s", "the {}s", "{} shape",
)  # fmt: skip
# Words that are true of nothing here: the text tower must learn that what it does not know matches no place.
OTHER_WORDS = """
dog cat person people man woman child face hand eye hair car bus truck bicycle motorcycle train boat ship plane road
street house building window door wall roof floor table chair bed sofa lamp clock phone computer screen keyboard book
paper pen bottle cup glass plate fork knife spoon bowl food bread apple banana orange juice cake pizza coffee tea
water river lake sea ocean beach sand rock stone mountain hill tree leaf flower grass plant forest garden park sky
cloud sun moon rain snow fire smoke light shadow bird fish horse cow sheep bear elephant lion tiger zebra giraffe
mouse rabbit insect butterfly bee shirt shoe hat coat dress bag umbrella ball bat racket kite skateboard surfboard ski
helmet player team game music guitar piano letter number word text traffic stop bench fence bridge tower church
city town village farm field animal vehicle furniture tool machine engine wheel seat robot doctor teacher student baby
boy girl king queen friend family crowd
""".split()  # noqa: SIM905
COMMON_WORDS = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by but not what all
were we when your can said there use an each which she do how their if will up other about out many then them these so
some her would make like him into time has look two more write go see no way could my than first been call who its now
find long down day did get come made may part over new sound take only little work know place year live me back give
most very after thing our just name good sentence think say great where help through much before line right too mean
old any same tell follow came want show also around form three small set put end does another well large must big even
such because turn here why ask went men read need land different home us move try kind picture again change off play
spell air away point page mother answer found study still learn should world high every near add between own below
country last never start earth near top bottom left right centre middle corner medium large small plain striped dotted
checked photo image scene empty space nothing something background grey brown dark bright colour shape texture video
frame
""".split()  # noqa: SIM905


def learn_merges(frequency: Counter[str], most: int) -> list[tuple[str, str]]:
    """Byte-pair merges, most frequent pair first (Sennrich et al., 2016), for words as open_clip splits them."""
    words = {(*word[:-1], word[-1] + "</w>"): count for word, count in frequency.items()}
    merges: list[tuple[str, str]] = []
    while len(merges) < most:
        pairs: Counter[tuple[str, str]] = Counter()
        for parts, count in words.items():
            for pair in pairwise(parts):
                pairs[pair] += count
        if not pairs:
            break
        best = max(sorted(pairs), key=pairs.__getitem__)
        merges.append(best)
        words = {_merged(parts, best): count for parts, count in words.items()}
    return merges


def _merged(parts: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in parts:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def write_vocabulary(folder: Path, seed: int) -> SimpleTokenizer:
    """Learns the merges from captions, templates and common words; writes `bpe.txt.gz` and reads it back."""
    rng = np.random.default_rng(seed)
    frequency = Counter(dict.fromkeys([*COMMON_WORDS, *OTHER_WORDS], 20))
    for _ in range(300):
        frequency.update(caption(make_scene(rng, (160, 160), (1, 4)), rng).replace(",", "").split())
    for text in (*GENERIC, *BACKGROUND, *TEMPLATES, *SYNONYMS.values(), *COLOURS, *NOUNS, *TEXTURES):
        frequency.update(text.replace("{}", "").split() * 20)
    frequency.update([f"{shape}s" for shape in (*NOUNS, *SYNONYMS.values())] * 20)
    merges = learn_merges(frequency, most=1400)
    lines = ["#version: tiny"] + [" ".join(pair) for pair in merges]
    path = folder / VOCABULARY
    # A fixed time of modification: the same words give the same bytes.
    path.write_bytes(gzip.compress("\n".join(lines).encode("utf-8"), mtime=0))
    return SimpleTokenizer(bpe_path=str(path), context_length=CONTEXT)


class Texts:
    """Token ids of phrases, kept; batches are cut to their longest text."""

    def __init__(self, tokenizer: SimpleTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, torch.Tensor] = {}

    def ids(self, phrases: Sequence[str]) -> torch.Tensor:
        rows = []
        for phrase in phrases:
            if phrase not in self._known:
                self._known[phrase] = self._tokenizer([phrase])[0]
            rows.append(self._known[phrase])
        ids = torch.stack(rows)
        longest = int((ids != 0).sum(dim=1).max())
        return ids[:, :longest]
