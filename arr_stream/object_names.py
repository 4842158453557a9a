"""Names of common objects: the 80 classes of COCO, with synonyms and plurals.

    object_at(["two", "young", "women"], 2)   # ObjectTerm("women", ("person",)), 1 word

After Lin et al., "Microsoft COCO: Common Objects in Context" (ECCV 2014).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

COCO: tuple[str, ...] = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
    *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow"),
    *("elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee"),
    *("skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard"),
    *("tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple"),
    *("sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch"),
    *("potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard"),
    *("cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors"),
    *("teddy bear", "hair drier", "toothbrush"),
)

_OTHER_LABELS = {
    "motorbike": "motorcycle",
    "aeroplane": "airplane",
    "sofa": "couch",
    "pottedplant": "potted plant",
    "diningtable": "dining table",
    "tvmonitor": "tv",
}
"""Names of Pascal VOC, which Darknet uses for COCO as well."""

_SYNONYMS: dict[str, str] = {
    "person": """
        man woman boy girl child kid baby toddler adult human pedestrian walker lady gentleman guy passer-by passerby
        somebody someone anybody anyone player worker driver passenger athlete runner dancer skater policeman
        policewoman officer soldier student teacher customer visitor intruder burglar thief postman farmer
        tourist actor
        """,
    "bicycle": "bike cycle cyclist biker",
    "car": "automobile sedan suv taxi cab hatchback limousine jeep",
    "motorcycle": "motorbike moped scooter motorcyclist",
    "airplane": "plane aeroplane aircraft jet airliner",
    "bus": "coach minibus",
    "train": "locomotive tram railcar",
    "truck": "lorry van pickup trailer",
    "boat": "ship yacht canoe kayak sailboat ferry vessel",
    "traffic light": "stoplight",
    "fire hydrant": "hydrant",
    "bird": "pigeon seagull gull duck swan goose hen chicken cockerel parrot crow flamingo eagle owl sparrow",
    "cat": "kitten kitty",
    "dog": "puppy hound terrier poodle retriever labrador corgi pup doggy",
    "horse": "pony foal mare stallion rider",
    "sheep": "lamb ewe",
    "cow": "cattle bull calf ox",
    "backpack": "rucksack",
    "umbrella": "parasol",
    "handbag": "purse",
    "tie": "necktie",
    "suitcase": "trolley",
    "skis": "ski skier",
    "snowboard": "snowboarder",
    "sports ball": "ball football basketball volleyball",
    "skateboard": "skateboarder",
    "surfboard": "surfer",
    "tennis racket": "racket racquet",
    "wine glass": "goblet",
    "cup": "mug",
    "donut": "doughnut",
    "chair": "armchair stool",
    "couch": "sofa settee",
    "potted plant": "houseplant",
    "dining table": "table desk",
    "tv": "television monitor",
    "laptop": "notebook",
    "cell phone": "phone mobile smartphone cellphone",
    "refrigerator": "fridge freezer",
    "teddy bear": "teddy",
    "hair drier": "hairdryer",
}
_GROUPS: dict[str, tuple[str, ...]] = {
    "vehicle": ("car", "truck", "bus", "motorcycle", "bicycle", "train", "boat", "airplane"),
    "animal": ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"),
    "pet": ("cat", "dog"),
    "luggage": ("suitcase", "backpack", "handbag"),
    "bag": ("handbag", "backpack", "suitcase"),
    "fruit": ("banana", "apple", "orange"),
    "glass": ("wine glass", "cup"),
    "plant": ("potted plant",),
}
_MOVING = frozenset(("person", "sports ball", *_GROUPS["vehicle"], *_GROUPS["animal"]))
_IRREGULAR = {
    "people": "person",
    "folk": "person",
    "men": "man",
    "women": "woman",
    "children": "child",
    "policemen": "policeman",
    "mice": "mouse",
    "geese": "goose",
    "oxen": "ox",
    "knives": "knife",
    "calves": "calf",
}


@dataclass(frozen=True, slots=True)
class ObjectTerm:
    """Word for a kind of object.

    Args:
        word: The word in the query.
        classes: COCO classes that match it.
    """

    word: str
    classes: tuple[str, ...]

    @property
    def moves(self) -> bool:
        """True for kinds that may move: people, animals, vehicles and balls."""
        return not _MOVING.isdisjoint(self.classes)

    def among(self, labels: Iterable[str]) -> ObjectTerm | None:
        """Return the term for a detector with these labels; None if it finds none of the classes."""
        known = frozenset(labels)
        classes = tuple(name for name in self.classes if name in known)
        return replace(self, classes=classes) if classes else None


def canonical(label: str) -> str:
    """Return COCO's name of a detector's class."""
    name = " ".join(label.casefold().replace("_", " ").split())
    return _OTHER_LABELS.get(name, name)


def _terms() -> dict[str, ObjectTerm]:
    named = {name: (name,) for name in COCO}
    for name, others in _SYNONYMS.items():
        named |= dict.fromkeys(others.split(), (name,))
    return {word: ObjectTerm(word, classes) for word, classes in (named | _GROUPS).items()}


TERMS = _terms()
_LONGEST = max(len(name.split()) for name in TERMS)


def object_at(words: Sequence[str], at: int) -> tuple[ObjectTerm | None, int]:
    """Return the object named from a word on, and its length in words; the longest name counts."""
    for count in range(min(_LONGEST, len(words) - at), 0, -1):
        name = " ".join(words[at : at + count])
        for single in _singulars(name):
            # Of a colour's name, such as orange, only the plural is an object.
            if single in TERMS and name != "orange":
                return replace(TERMS[single], word=name), count
    return None, 0


def _singulars(name: str) -> Iterator[str]:
    yield name
    if name in _IRREGULAR:
        yield _IRREGULAR[name]
    if name.endswith("ies"):
        yield f"{name[:-3]}y"
    if name.endswith("es"):
        yield name[:-2]
    if name.endswith("s"):
        yield name[:-1]
