#!/usr/bin/env python3
"""Makes a tiny Qwen3-VL or Qwen3.5, MoE or not, in true format: random weights, a real processor, a small tokenizer.

    scripts/make_tiny_qwen3_vl.py FOLDER [--family MODEL_TYPE] [--seed N] [--vision-layers N] [--text-layers N]
        [--hidden N]

`AutoModelForImageTextToText.from_pretrained(FOLDER)` and `AutoProcessor.from_pretrained(FOLDER)` load it, offline.
Every mechanism of the true model is there (patches, interpolated positions, DeepStack, M-RoPE, special tokens, Gated
DeltaNet); its answers mean nothing. The same seed, sizes and versions of the libraries give the same weights
and the same vocabulary.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, Qwen2Tokenizer

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from arr_stream.vlm.qwen3_vl.families import FAMILIES  # noqa: E402
from benchmarks.vlm.model import CHAT_TEMPLATE, CONTEXT_TOKENS, config_of, processor_of  # noqa: E402

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""In the order of the true tokenizer; they follow the merges without a gap."""

MERGES = 2000
"""At most; training stops when every word of its text is one token."""

HEADS, HEAD_DIM = 4, 32
LINEAR = {
    "partial_rotary_factor": 0.5,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
"""Full attention in every second layer, so that four layers have two of each."""
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
"""No matrix is square, so that a transposed one is known by its shape."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


THINGS = _words(
    """
    car bus bicycle truck van taxi tram motorcycle scooter helmet driver passenger pedestrian child woman man
    girl boy teacher nurse worker farmer player dancer cook waiter guard dog cat horse cow sheep goat bird duck
    pigeon crow parrot rabbit mouse squirrel fish turtle butterfly spider house tower bridge church castle
    garage kitchen window door roof chimney stair balcony fence wall garden lawn flower tree bush branch leaf
    rock stone river lake beach wave boat ship ferry harbour island mountain valley cloud rainbow puddle shadow
    lamp candle mirror picture frame clock calendar phone laptop keyboard screen printer camera bottle glass cup
    plate bowl spoon fork knife table chair bench sofa pillow blanket carpet curtain shelf drawer basket
    suitcase backpack umbrella jacket sweater shirt trousers shoe boot glove scarf hat ring necklace ticket
    newspaper magazine notebook pencil brush hammer ladder rope bucket broom engine wheel tyre signal crossing
    pavement platform station airport runway aeroplane helicopter balloon kite drum guitar piano violin trumpet
    football racket goal stadium market bakery library hospital school museum theatre restaurant sandwich apple
    orange banana lemon tomato carrot onion potato bread cheese butter coffee letter number arrow square circle
    triangle stripe corner centre edge background foreground
    """
)

ADJECTIVES = _words(
    """
    red orange yellow green blue purple pink brown black white grey silver golden dark bright pale striped
    spotted round flat tall short long narrow wide small large huge tiny heavy light old new young broken clean
    dirty wet dry empty full open closed wooden metal plastic striking ordinary familiar strange quick slow
    quiet noisy calm busy distant nearby hidden visible blurred sharp foggy sunny rainy snowy frozen burning
    shining moving parked waiting
    """
)

ACTIONS = _words(
    """
    stands sits lies runs walks jumps turns stops waits falls rises appears disappears moves drifts rolls slides
    swings bounces climbs flies swims sleeps watches listens speaks laughs points waves leans carries pushes
    pulls lifts drops throws catches opens closes enters leaves crosses follows passes approaches overtakes
    circles hides shines
    """
)

PLACES = _words(
    """
    beside behind before above below under over near inside outside between around across along against towards
    beyond through
    """
)

TIMES = _words(
    """
    now then later again soon today yesterday tomorrow afterwards meanwhile finally first immediately slowly
    suddenly gradually often sometimes always never once twice
    """
)

COUNTS = _words(
    """
    one two three four five six seven eight nine ten eleven twelve twenty thirty hundred several many few
    """
)

PATTERNS = (
    "The {adjective} {thing} {action} {place} the {thing2}.",
    "How many {thing}s are there {place} the {adjective} {thing2}?",
    "What is the colour of the {thing} {place} the {thing2}?",
    "There are {count} {thing}s in the picture, and {count2} of them are {adjective}.",
    "At {number}.{digit} seconds the {thing} {action}; {time} the {thing2} {action2}.",
    "Where is the {adjective} {thing}? It is {place} the {thing2}.",
    "Yes, I can see the {thing}, but the {thing2} isn't {adjective}.",
    "No, the {adjective} {thing} {action} {time}, not the {thing2}.",
    "Describe what happens when the {thing} {action} {place} a {adjective} {thing2}.",
    "Which {thing} {action} {time}, the {adjective} or the {adjective2} one?",
    'The sign says "{thing}" and has an arrow towards the {thing2}.',
    "After {number} minutes they're {place} the {thing}, {count} steps from the {thing2}.",
    "{time}, a {adjective}, {adjective2} {thing} {action} and the video ends.",
    "Please answer in one word: is the {thing} {adjective}?",
)


def make_tiny_qwen3_vl(
    folder: Path | str,
    *,
    family: str = "qwen3_vl",
    seed: int = 0,
    vision_layers: int = 4,
    text_layers: int = 4,
    hidden: int = 64,
    text: Mapping[str, Any] | None = None,
) -> Path:
    """Writes model, tokenizer, processors and chat template to `folder` and gives it back.

    Args:
        folder: Made if need be; files of the same names are replaced.
        family: A `model_type` of `FAMILIES`.
        seed: Of the weights; the tokenizer does not depend on it.
        vision_layers: Depth of the vision tower, 2 to 5; every second layer but the last feeds DeepStack.
        text_layers: Layers of the language model, at least as many as DeepStack feeds.
        hidden: Width of both, a multiple of 16. The language model has 4 heads of 32 channels, the tower 4 as well.
        text: Keys of `text_config` in place of these; vLLM's kernels for the CPU take few sizes.

    Raises:
        ValueError: The sizes do not fit together.
    """
    deepstack = list(range(0, vision_layers - 1, 2))
    if not 2 <= vision_layers <= 5 or text_layers < len(deepstack) or hidden % (4 * HEADS):
        raise ValueError(
            f"vision layers {vision_layers} (2 to 5), text layers {text_layers} (at least {len(deepstack)}), "
            f"width {hidden} (a multiple of {4 * HEADS})"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kind = FAMILIES[family]
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([part for part in kind.answer_start if not part.isspace()])
    start = "<|im_start|>assistant\\n"
    template = CHAT_TEMPLATE.replace(start, start + "".join(kind.answer_start).replace("\n", "\\n"))
    processor_of(tokenizer, template).save_pretrained(folder)
    shared = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "dtype": "float32"}
    vision = {"depth": vision_layers, "num_heads": HEADS}
    if kind.deepstack:
        vision["deepstack_visual_indexes"] = deepstack
    sizes = {"num_hidden_layers": text_layers, "num_attention_heads": HEADS, "head_dim": HEAD_DIM}
    if kind.recurrent:
        sizes |= LINEAR
    if family.endswith("_moe"):
        sizes |= EXPERTS
    options = {"tie_word_embeddings": True, "dtype": "float32"}
    config = config_of(
        tokenizer, family=family, vision=shared | vision, text=shared | sizes | dict(text or {}), **options
    )
    model = kind.class_of("ForConditionalGeneration")(config)
    fill_weights(model, seed)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=tokenizer.pad_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        do_sample=True,
        temperature=0.7,
        top_k=20,
        top_p=0.8,
    )
    model.save_pretrained(folder, safe_serialization=True)
    return folder


CENTRED_NORMS = ("Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm")
"""Qwen3.5 adds 1 to the weights of its norms, but not to those of its gated ones."""


@torch.no_grad()
def fill_weights(model: torch.nn.Module, seed: int) -> None:
    """Random weights under which everything counts: every layer, place, bias and norm changes the logits.

    The library's own start (0.02, biases zero, norms one) would leave a narrow model nearly blind to what it sees.
    Here each layer's output is about as large as its input, norms and biases differ from channel to channel, and
    queries and keys are long enough for attention to be choosy; logits have a standard deviation of about 1.
    """
    generator = torch.Generator().manual_seed(seed)
    centred = {f"{name}.weight" for name, module in model.named_modules() if type(module).__name__ in CENTRED_NORMS}
    for name, parameter in sorted(model.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator)
        if name.endswith("pos_embed.weight"):
            scale, shift = 1.0, 0.0
        elif ".experts." in name:
            scale, shift = 1 / math.sqrt(parameter.shape[-1]), 0.0
        elif parameter.ndim > 1:
            scale, shift = 1 / math.sqrt(parameter[0].numel()), 0.0
        elif name.endswith("bias"):
            scale, shift = 0.1, 0.0
        elif name.endswith("A_log"):
            # States that fade within tens of tokens.
            scale, shift = 0.5, -3.0
        else:
            scale, shift = 0.1, 1.25 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
        parameter.copy_(values * scale + (shift - 1.0 if name in centred else shift))


def make_tokenizer(texts: Sequence[str] = ()) -> Qwen2Tokenizer:
    """A byte-level BPE trained on texts, with the true model's way of splitting and its special tokens.

    Args:
        texts: Whose words become tokens; `sentences` if none are given.
    """
    empty = Qwen2Tokenizer().backend_tokenizer
    trained = Tokenizer(models.BPE())
    trained.normalizer = empty.normalizer
    trained.pre_tokenizer = empty.pre_tokenizer
    trained.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(texts or sentences(), trainer=trainer)
    learned = json.loads(trained.to_str())["model"]
    vocabulary = learned["vocab"] | {token: len(learned["vocab"]) + i for i, token in enumerate(SPECIAL_TOKENS)}
    return Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[tuple(pair) for pair in learned["merges"]],  # type: ignore[misc]
        unk_token=None,  # type: ignore[arg-type]
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT_TOKENS,
        extra_special_tokens=list(SPECIAL_TOKENS),
    )


def sentences(count: int = 3000) -> list[str]:
    """Plain sentences about scenes, colours, counting and time, always the same ones, and a caption for every thing."""
    draw = random.Random(20)
    made = [f"{thing.capitalize()}, {thing}, several {thing}s" for thing in THINGS]
    for index in range(count):
        words = {
            "thing": THINGS[index % len(THINGS)],
            "thing2": draw.choice(THINGS),
            "adjective": ADJECTIVES[index % len(ADJECTIVES)],
            "adjective2": draw.choice(ADJECTIVES),
            "action": ACTIONS[index % len(ACTIONS)],
            "action2": draw.choice(ACTIONS),
            "place": draw.choice(PLACES),
            "time": draw.choice(TIMES),
            "count": draw.choice(COUNTS),
            "count2": draw.choice(COUNTS),
            "number": str(draw.randrange(100)),
            "digit": str(draw.randrange(10)),
        }
        text = draw.choice(PATTERNS).format(**words)
        made.append(text[0].upper() + text[1:])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=FAMILIES, default="qwen3_vl")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vision-layers", type=int, default=4)
    parser.add_argument("--text-layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=64, help="width")
    options = vars(parser.parse_args())
    try:
        folder = make_tiny_qwen3_vl(options.pop("folder"), **options)
    except ValueError as exc:
        parser.error(str(exc))
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
