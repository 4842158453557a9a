#!/usr/bin/env python3
"""Makes a small task for lmms-eval out of drawn scenes: to try the harness without any benchmark's data.

    scripts/make_lmms_eval_task.py FOLDER [--questions N] [--seed N]
    lmms-eval eval --include_path FOLDER --tasks drawn_shapes,drawn_shapes_likeliest ...

`drawn_shapes` is answered in words, `drawn_shapes_likeliest` by the likelihoods of the options, which the harness asks
of simple models alone (`--force_simple`). `arr-stream eval questions FOLDER` asks the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from arr_stream.evaluation.questions import FILE_NAME  # noqa: E402
from benchmarks.scenes.shapes import COLOURS, make_scene  # noqa: E402

OPTIONS = 4

TASK = """\
task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {output_type}
doc_to_visual: !function drawn_shapes.doc_to_visual
doc_to_text: question
doc_to_target: answer
{more}
"""
IN_WORDS = """\
generation_kwargs: {max_new_tokens: 8}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true, ignore_punctuation: true}"""
LIKELIEST = """\
doc_to_choice: options
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}"""
FUNCTIONS = '''\
"""What the harness calls."""

from pathlib import Path

from PIL import Image


def doc_to_visual(doc):
    return [Image.open(Path(__file__).with_name(doc["picture"])).convert("RGB")]
'''


def make_task(folder: Path, *, questions: int = 12, seed: int = 0) -> None:
    """Writes pictures, questions and both tasks.

    Args:
        folder: Made if need be; files of the same names are replaced.
        questions: Each about the colour of a thing that is the only one of its shape.
        seed: Of the scenes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng, lines = np.random.default_rng(seed), []
    while len(lines) < questions:
        scene = make_scene(rng, (448, 256), plain=True)
        shapes = [thing.shape for thing in scene.things]
        asked = next((thing for thing in scene.things if shapes.count(thing.shape) == 1 and thing.mask.any()), None)
        if asked is None:
            continue
        name = f"{len(lines):03d}.png"
        Image.fromarray(scene.rgb).save(folder / name)
        others = rng.permutation([colour for colour in COLOURS if colour != asked.colour])[: OPTIONS - 1].tolist()
        fields = {"picture": name, "question": f"What colour is the {asked.shape}?", "answer": asked.colour}
        lines.append(json.dumps(fields | {"options": sorted([asked.colour, *others]), "kind": "colour"}))
    data = folder.resolve() / FILE_NAME
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "drawn_shapes.py").write_text(FUNCTIONS, encoding="utf-8")
    kinds = {"drawn_shapes": ("generate_until", IN_WORDS), "drawn_shapes_likeliest": ("multiple_choice", LIKELIEST)}
    for task, (output_type, more) in kinds.items():
        text = TASK.format(task=task, data=json.dumps(str(data)), output_type=output_type, more=more)
        (folder / f"{task}.yaml").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", type=int, default=12, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the scenes (%(default)s)")
    given = parser.parse_args()
    make_task(given.folder, questions=given.questions, seed=given.seed)
    print(f"wrote {given.folder}")


if __name__ == "__main__":
    main()
