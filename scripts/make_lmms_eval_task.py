#!/usr/bin/env python3
"""Makes a small task for lmms-eval out of drawn scenes: to try the harness without any benchmark's data.

    scripts/make_lmms_eval_task.py FOLDER [--questions N] [--seed N] [--purpose training]
    lmms-eval eval --include_path FOLDER --tasks drawn_shapes ...

`arr-stream eval questions FOLDER` asks the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import get_args

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from arr_stream.evaluation.questions import FILE_NAME  # noqa: E402
from benchmarks.answers.table import drawn  # noqa: E402
from benchmarks.scenes.stories import Purpose, picture_story  # noqa: E402

EACH = 6
"""Questions of a picture."""

TASK = """\
task: drawn_shapes
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function drawn_shapes.doc_to_visual
doc_to_text: question
doc_to_target: answer
generation_kwargs: {{max_new_tokens: 8}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true, ignore_punctuation: true}}
"""
FUNCTIONS = '''\
"""What the harness calls."""

from pathlib import Path

from PIL import Image


def doc_to_visual(doc):
    return [Image.open(Path(__file__).with_name(doc["picture"])).convert("RGB")]
'''


def make_task(
    folder: Path,
    *,
    questions: int = 12,
    seed: int = 0,
    purpose: Purpose = "reporting",
    cells: tuple[int, int] = (14, 8),
) -> None:
    """Writes pictures, questions and the task.

    Args:
        folder: Made if need be; files of the same names are replaced.
        questions: How many, six of a picture.
        seed: Of the pictures.
        purpose: Set of photographs behind the things.
        cells: Columns and rows of 32 pixels of a picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng, lines, number = np.random.default_rng(seed), list[str](), 0
    while len(lines) < questions:
        story = picture_story(rng, (cells[0] * 32, cells[1] * 32), (2, 6), purpose=purpose)
        name, number = f"{number:03d}.png", number + 1
        Image.fromarray(story.frames[0]).save(folder / name)
        for asked in drawn(story, rng, min(EACH, questions - len(lines))):
            fields = {"picture": name, "question": asked.question, "answer": asked.answer}
            lines.append(json.dumps(fields | {"options": sorted(asked.options), "kind": asked.kind}))
    data = folder.resolve() / FILE_NAME
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "drawn_shapes.py").write_text(FUNCTIONS, encoding="utf-8")
    text = TASK.format(data=json.dumps(str(data)))
    (folder / "drawn_shapes.yaml").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", type=int, default=12, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the scenes (%(default)s)")
    parser.add_argument("--purpose", choices=get_args(Purpose), default="reporting", help="set of photographs")
    given = parser.parse_args()
    make_task(given.folder, questions=given.questions, seed=given.seed, purpose=given.purpose)
    print(f"wrote {given.folder}")


if __name__ == "__main__":
    main()
