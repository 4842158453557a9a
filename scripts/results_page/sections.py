"""What is measured: the sections of the page in their order, each with its commands.

In a command `DATA` is the folder of footage, `PICTURE` the picture that the command draws, and `FILE` the JSON that it
writes; without the last it prints JSON. Commands are those of `arr-stream`, unless a script of this project is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Need = Literal["davis", "flow", "text", "chromium", "cuda"]
"""What a section cannot do without: a folder of DATA, or a thing of the machine."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Args:
        line: As typed after the program's name.
        quick: A shorter one of the same kind, for trying; the same where empty.
        label: What tells it from the section's others.
        script: Of the project's own, such as `scripts/fuzz`; `arr-stream` where empty.
    """

    line: str
    quick: str = ""
    label: str = ""
    script: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page.

    Args:
        name: Of its file, and of its anchor.
        title: Its heading.
        shows: What is measured, and how to read it.
        commands: What is run, in this order.
        needs: Without one of these it is not measured, and the page says so.
        page: The document that explains it.
        minutes: About how long it takes on two quiet cores.
        drop: Keys of the printed JSON that are not kept, for their size.
    """

    name: str
    title: str
    shows: str
    commands: tuple[Command, ...]
    needs: tuple[Need, ...] = ()
    page: str = ""
    minutes: float = 1.0
    drop: tuple[str, ...] = ()


STRATEGIES = ("topk", "hybrid", "proportional", "canonical", "tiers")
PASSES = ("coarse", "native", "windows")
_COVERAGE = "eval coverage DATA/davis --set keyframes.text=none"

SECTIONS: tuple[Section, ...] = (
    Section(
        "compare",
        "Against other rules",
        "The same frames, the same number of tokens: how much of the object, of text and of what moves do the chosen "
        "cells show? Beside ours stand published rules for dropping visual tokens, an even grid, chance, and the whole "
        "frame scaled down. Ours plays at home: its scorers' defaults were chosen with the sequences with masks in "
        "view, and the photographs guided `scoring.text`; the gain on sequences that a fit has not seen stands "
        "[below](#tune).",
        (
            Command(
                "bench compare DATA --json --plot PICTURE",
                "bench compare --kind samples --features pixels --budget 10% --max-frames 30 --seeds 1 --json "
                "--plot PICTURE",
            ),
        ),
        ("davis", "text"),
        "compare.md",
        12,
        drop=("rows",),
    ),
    Section(
        "claims",
        "What the idea promised",
        "Each claim that the design began with, what was measured here, and whether it holds. What a keyframe and a "
        "dense pass cost grows with the frame, so that video is measured at two sizes.",
        (Command("bench claims --json", "bench claims --quick --json"),),
        page="claims.md",
        minutes=3,
    ),
    Section(
        "query",
        "What an answer in plain words costs",
        "Relevance to a text read from the texture, against the plain ways to get it: a dense pass of the model on "
        "every frame, and a crop encoded for every place. The model has the architecture of the released one and "
        "random weights, which take the same time.",
        (
            Command(
                "bench query --clip-model ViT-B-16:random --json",
                "bench query --clip-model tiny --size 448x256 --repeats 1 --json",
            ),
        ),
        page="projection.md",
        minutes=0.7,
    ),
    Section(
        "stages",
        "What each stage of a frame costs",
        "Every stage on frames between keyframes and on keyframes, beside the same frames without arr-stream: "
        "decoding, encoding, optical flow alone, and everything anew on every frame. Look at the ratios.",
        (
            Command(
                "bench file sample_videos/street.mp4 --query red --json",
                "bench file sample_videos/street.mp4 --query red --frames 20 --repeats 1 --json",
            ),
        ),
        page="design.md",
        minutes=0.4,
    ),
    Section(
        "device",
        "The frame loop on a GPU",
        "A frame between keyframes, all channels dense, and each kernel beside the time that its memory traffic alone "
        "would take.",
        (Command("bench device --device cuda --size 1024x1024 --json"),),
        ("cuda",),
        "device.md",
        1,
    ),
    Section(
        "processor",
        "The frame loop on the processor",
        "Each stage's share of a frame, and of what the memory's bandwidth would allow.",
        (
            Command(
                "bench device --device cpu --size 1024x1024 --json",
                "bench device --device cpu --size 448x256 --json",
            ),
        ),
        page="device.md",
        minutes=0.5,
    ),
    Section(
        "tune",
        "Fitted weights on sequences that the fit has not seen",
        "The scorers' weights fitted on one half of the sequences, and coverage on the other half before and after, "
        "then with the halves exchanged. The fit starts from the weights that were once set by hand (`untuned`).",
        (
            Command(
                "tune DATA/davis --preset untuned --json",
                "tune sample_videos --preset untuned --rounds 1 --minutes 0.2 --json",
                "the first half is held out",
            ),
            Command(
                "tune DATA/davis --preset untuned --hold-out other-half --json",
                "tune sample_videos --preset untuned --hold-out other-half --rounds 1 --minutes 0.2 --json",
                "the second half is held out",
            ),
        ),
        ("davis",),
        "tuning.md",
        4,
    ),
    Section(
        "ablation",
        "What each part is worth",
        "Each part switched off in turn: coverage of the object, and the time of a frame as a ratio. A difference "
        "counts from two standard errors over the sequences on.",
        (Command("eval ablation DATA/davis --frames 30 --json", "eval ablation --only saliency --frames 10 --json"),),
        ("davis",),
        "ablation.md",
        4,
    ),
    Section(
        "interval",
        "How rare keyframes may be",
        "Quality and cost against the interval from keyframe to keyframe, and the knee of the curve.",
        (
            Command(
                "eval interval DATA/davis --json --plot PICTURE",
                "eval interval --every 5 --every 30 --frames 40 --clips 1 --json --plot PICTURE",
            ),
        ),
        ("davis",),
        "ablation.md",
        3,
    ),
    Section(
        "coverage",
        "Coverage of an object that is asked for",
        "The box around the object on the first frame is the query; how much of the object do the chosen cells show on "
        "all later frames? *First box held still* never moves, *centre* is the middle of the frame, and *oracle* is "
        "the best possible choice.",
        (
            Command(
                "eval coverage DATA/davis --json --plot PICTURE",
                "eval coverage sample_videos --budget 40 --set keyframes.text=none --json --plot PICTURE",
            ),
        ),
        ("davis",),
        "design.md",
        0.5,
    ),
    Section(
        "carry",
        "Masks carried between keyframes",
        "The true mask of every Nth frame is carried over the frames between, and compared with the true ones.",
        (
            Command(
                "eval carry DATA/davis --json --plot PICTURE",
                "eval carry sample_videos --interval 10 --json --plot PICTURE",
            ),
        ),
        ("davis",),
        "design.md",
        0.7,
    ),
    Section(
        "flow",
        "Optical flow",
        "Endpoint error on pairs with ground truth, at the size of the pictures.",
        (Command("eval flow DATA/flow --json --plot PICTURE"),),
        ("flow",),
        "design.md",
        0.2,
    ),
    Section(
        "clusters",
        "How well regions follow objects",
        "With the object's mask known, which union of whole regions is nearest to it? That is a ceiling for everything "
        "that goes by region. *By majority* takes the regions of which the object covers at least half.",
        (Command("eval clusters DATA/davis --every 10 --json", "eval clusters DATA/davis --every 60 --json"),),
        ("davis",),
        "clusters.md",
        0.5,
    ),
    Section(
        "text",
        "Text",
        "*Recall* is the share of the words' pixels that the mask covers, *precision* the share of the mask that lies "
        "on words; a word is *found* when at least half of it is covered, *read* when it was read without error, and "
        "*matched* when a query with the word in quotes finds it.",
        (
            Command(
                "eval text DATA/text --backend auto --backend rapidocr --backend easyocr --blank "
                "DATA/davis/frames/blackswan --blank DATA/davis/frames/cows --blank DATA/davis/frames/goat --blank "
                "DATA/davis/frames/kite-surf --blank DATA/davis/frames/libby --blank-every 40 "
                "--set models.device=cpu --json",
                "eval text DATA/text --backend auto --json",
            ),
        ),
        ("text", "davis"),
        "text.md",
        1.2,
    ),
    Section(
        "localisation",
        "Dense features of CLIP: methods and passes",
        "Generated scenes are asked for every colour and shape in them (*red circle*) and for every shape alone "
        "(*circle*). *Cells* is the AUC of the asked thing's cells against all others, *things* against those of other "
        "things, *share* what the best tenth of the cells covers of it, as a share of the best possible. The tiny "
        "encoder was trained through `value`, which therefore plays at home.",
        (
            Command(
                "eval localisation --scenes 40 --json", "eval localisation --scenes 4 --json", "scenes of 448x256 px"
            ),
            Command(
                "eval localisation --scenes 30 --size 672x384 --method value --method self --method neighbour --json",
                "eval localisation --scenes 2 --size 672x384 --method value --json",
                "scenes of 672x384 px",
            ),
            *(
                Command(
                    f"eval localisation --scenes 40 --size 1024x1024 --method value --passes native "
                    f"--set clip.places={places} --json",
                    f"eval localisation --scenes 2 --size 1024x1024 --method value --passes native "
                    f"--set clip.places={places} --json",
                    f"scenes of 1024x1024 px, at most {places} places",
                )
                for places in (1024, 2048, 4096)
            ),
        ),
        page="dense_clip.md",
        minutes=3,
    ),
    Section(
        "passes",
        "What a pass over a frame costs",
        "One dense pass over a frame of 864x480 pixels with ViT-B-32 (random weights, which take the same time).",
        tuple(
            Command(
                f"bench query --clip-model ViT-B-32:random --repeats 2 --set clip.passes={name} --json",
                f"bench query --clip-model tiny --size 448x256 --repeats 1 --set clip.passes={name} --json",
                name,
            )
            for name in PASSES
        ),
        page="dense_clip.md",
        minutes=0.7,
    ),
    Section(
        "meaning",
        "Sixteen channels instead of hundreds of numbers",
        "The best cells by 16 channels and by all numbers: how many they have in common, for queries that are asked "
        "and for others; and how much of the object the chosen tenth of the cells covers between keyframes, as a share "
        "of the best possible. Generated scenes, and the tiny encoder that comes with the package.",
        (Command("eval meaning --json", "eval meaning --clips 2 --scenes 1 --interval 10 --json"),),
        page="projection.md",
        minutes=0.6,
    ),
    Section(
        "strategies",
        "Choosing cells by region",
        "As the coverage above, for each `selection.strategy`. What the region strategies buy is a view of everything, "
        "which coverage of one object does not reward; *context* is the share of the frame inside any cell.",
        tuple(
            Command(
                f"{_COVERAGE} --set selection.strategy={name} --json",
                f"eval coverage sample_videos --budget 40 --set keyframes.text=none --set selection.strategy={name} "
                "--json",
                name,
            )
            for name in STRATEGIES
        ),
        ("davis",),
        "atlas.md",
        1.7,
    ),
    Section(
        "atlas",
        "Pooling features over regions",
        "Every token is the mean of some cells of the whole frame. *Detail* is the share of the variance of the cells' "
        "looks that the means keep, *IoU* how well the object can be told apart by choosing whole tokens.",
        (
            Command(
                "eval atlas DATA/davis --clusters features --cluster-count 50 --cluster-count 100 --json",
                "eval atlas DATA/davis --frames 1 --budget 40 --json",
            ),
        ),
        ("davis",),
        "atlas.md",
        0.3,
    ),
    Section(
        "cascade",
        "Looking at regions first",
        "Coverage of the object by scoring every place, and by the cascade, which scores regions first and then the "
        "places of the best ones. *Scored* is the most on any picture, regions included; *lost* is the share of the "
        "coverage, negative for a gain.",
        (
            Command(
                "eval cascade DATA/davis --scenes 40 --side 1024 --half-cells --json",
                "eval cascade --scenes 2 --side 512 --half-cells --json",
            ),
        ),
        ("davis",),
        "atlas.md",
        0.3,
    ),
    Section(
        "questions",
        "Does the choice hold the answer?",
        "Pictures with a question whose answer is known, seen in part. *Seen* is the share of what must be seen that "
        "lies inside fine cells, *at any detail* inside cells of any level, *wholly* the share of questions where each "
        "thing has at least 90% of it in fine cells. *With CLIP* is the tiny encoder, trained on scenes drawn by the "
        "same code (others than these), which knows nothing of photographs.",
        (
            Command(
                "eval questions --no-model --json",
                "eval questions --no-model --every 12 --budget 25% --json",
                "as it comes",
            ),
            Command(
                "eval questions --no-model --choice ours --budget 25% --budget 10% --set keyframes.embeddings=clip "
                "--set clip.model=tiny --json",
                "eval questions --no-model --choice ours --every 12 --budget 25% --set keyframes.embeddings=clip "
                "--set clip.model=tiny --json",
                "with CLIP",
            ),
        ),
        page="questions.md",
        minutes=1.5,
        drop=("outcomes",),
    ),
    Section(
        "vlm",
        "Qwen3-VL with the chosen cells alone",
        "The same model with the chosen cells and, as its makers ship it, with whole frames; in turns, in one run. Its "
        "weights are random, which changes no time. Look at the ratios; *counted* is what they come to by counted "
        "multiplications, without overheads.",
        (
            Command(
                "bench vlm --part vision --part end-to-end --runs 2 --json",
                "bench vlm --part vision --side 256 --tokens 20 --layers 3,2 --width 64,256 --runs 1 --json",
            ),
        ),
        page="vlm_cost.md",
        minutes=1.7,
    ),
    Section(
        "modes",
        "The four ways to feed Qwen3-VL",
        "Vision, prefill, cache and time of an answer's token at a tenth, a quarter, half and all of a frame's cells.",
        (
            Command(
                "bench vlm --part modes --side 512 --tokens 64 --runs 4 --json",
                "bench vlm --part modes --side 256 --tokens 20 --layers 3,2 --width 64,256 --runs 2 --json",
            ),
        ),
        page="vlm_cost.md",
        minutes=0.5,
    ),
    Section(
        "memory",
        "A model's memory over a long stream",
        "A stream with cuts and questions in a small context: how often the memory is rebuilt, and what it takes.",
        (
            Command(
                "bench vlm --part memory --frames 250 --json",
                "bench vlm --part memory --frames 40 --layers 3,2 --width 64,256 --json",
            ),
        ),
        page="vlm_cost.md",
        minutes=0.6,
    ),
    Section(
        "live",
        "Live streams on the page",
        "A real server and a real browser on the same machine, pictures of 640x360 at 30 a second, no model. The time "
        "at which a picture stood on the canvas is read from a counter in the picture itself.",
        (Command("bench live --seconds 10 --json", "bench live --part page --seconds 4 --json"),),
        ("chromium",),
        "live_figures.md",
        2.5,
    ),
    Section(
        "engines",
        "A batch by each engine",
        "Twenty generated files of 600 frames by local processes and by Ray on the same machine, in turns. What Ray "
        "takes to begin and to end is the same for every batch; the longer the batch, the less it counts.",
        (
            Command(
                "bench batch --frames 600 --repeats 2 --json", "bench batch --files 4 --frames 20 --repeats 1 --json"
            ),
        ),
        page="batch_ray.md",
        minutes=4,
    ),
    Section(
        "fuzz",
        "Mutated input",
        "Every reader of what others wrote, on mutated input. *Values*: read as something; *refused*: one clear line. "
        "A finding is anything else: a crash, a hang over 10 s, too much memory, or a file, address or process that "
        "was none of the reader's business.",
        (Command("--inputs 20000 --json FILE", "--inputs 300 --json FILE", script="scripts/fuzz"),),
        page="fuzzing.md",
        minutes=5,
    ),
    Section(
        "soak",
        "An hour of stream with faults",
        "The real server and its workers on generated streams, as fast as it goes, with faults on a schedule. Slopes "
        "are least squares after a sixth of the stream.",
        (
            Command(
                "--json FILE --plot PICTURE",
                "--stream-minutes 3 --json FILE --plot PICTURE",
                script="scripts/soak",
            ),
        ),
        page="soak.md",
        minutes=14,
    ),
)

BY_NAME = {section.name: section for section in SECTIONS}
