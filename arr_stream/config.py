"""All settings, with their defaults, in one place.

Precedence, strongest first: `--set key=value` and the command line's own options, the preset (`--preset FILE.toml`),
presets that it includes (`include = "tuned.toml"`), the defaults below. Keys are dotted paths such as
`keyframes.interval`. An unknown key is refused with the nearest known one named.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from arr_stream.budget import budget_tokens
from arr_stream.errors import InvalidSetting, PresetNotFound, UnknownSetting
from arr_stream.plain_text import redact_url

_INSTALLED_PRESETS = Path(__file__).with_name("presets")

PRESETS = _INSTALLED_PRESETS if _INSTALLED_PRESETS.is_dir() else Path(__file__).parent.parent / "pipelines"
"""Presets that come with the project: in the installed package, or beside it in a checkout; their bare names
suffice."""

_LARGEST_PRESET_BYTES = 1 << 20

Unit = Annotated[float, Field(ge=0.0, le=1.0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GridSettings(_Section):
    max_pixels: int = Field(1_048_576, ge=1024, description="larger frames are scaled down to this for perception")


class SourceSettings(_Section):
    max_pixels: int = Field(100_000_000, ge=1, description="refuse frames with more pixels than this")
    remote_max_bytes: int = Field(
        20_000_000_000, ge=1, description="refuse files of a store or web server that are larger than this"
    )
    untagged_matrix: Literal["auto", "bt601", "bt709"] = Field(
        "auto",
        description="matrix of video that names none; `auto`: `bt709` from 1280 wide or 720 high on, else `bt601`",
    )
    stride: int = Field(1, ge=1, description="of a file or pictures, take every Nth frame")
    stop_at_damage: bool = Field(
        False, description="end at the first packet or picture that cannot be decoded, instead of skipping it"
    )


class LoopSettings(_Section):
    device: Literal["cpu", "cuda"] = Field("cpu", description="where the frame loop runs")


class KeyframeSettings(_Section):
    interval: int = Field(30, ge=1, description="frames from one refresh to the next")
    min_interval: int = Field(10, ge=1, description="least number of frames between refreshes for low confidence")
    min_confidence: Unit = Field(
        0.35, description="refresh when the mean confidence of propagated results falls below this"
    )
    delay: int = Field(
        8,
        ge=0,
        description="in a video file, frames that a keyframe's results take to arrive, computed in parallel; at most "
        "one less than the interval, and 2 for a new scene without a query; 0: wait for every keyframe, as with "
        "pictures in a folder",
    )
    text_interval: int = Field(
        120,
        ge=1,
        description="frames between text searches of the whole picture; keyframes between them search only new places, "
        "or none while a dominant query needs no text (`text=auto`, unless a query asks for words)",
    )
    window_share: Unit = Field(
        0.4,
        description="largest share of a keyframe's cost that CLIP, if a query needs it, may spend between two "
        "keyframes on new places of the picture; 0: it runs on keyframes only",
    )
    clusters: Literal["auto", "slic", "slic-fast", "slic-skimage", "grid", "merge", "features", "sam"] = Field(
        "auto",
        description="`slic`: fast-slic where installed, else scikit-image; `auto`: the same, made when first read",
    )
    cluster_count: int = Field(
        50, ge=1, le=4096, description="approximate number of regions (`sam` finds its own number)"
    )
    embeddings: Literal["appearance", "clip"] = Field("appearance", description="content of channels 18-33")
    text: Literal["auto", "rapidocr", "easyocr", "none"] = Field(
        "auto",
        description="text detector; `auto` searches coarsely first, and closely only near hints",
    )
    objects: str = Field(
        "auto",
        description="detector of the objects that a query names: `auto` (weights from an installed package, if there "
        "are any), `off`, a detector of `models list`, or a detector's ONNX file",
    )

    @property
    def frames_beside(self) -> int:
        """Delay of a keyframe in frames; less than the interval, so that one arrives before the next is due."""
        return min(self.delay, self.interval - 1)

    timeout_seconds: float = Field(
        120.0,
        gt=0,
        description="in real time, longest time of a keyframe; then its worker is restarted with new models",
    )


class ClipSettings(_Section):
    model: str = Field(
        "tiny", description="`tiny`, NAME:PRETRAINED as open_clip writes it, or a folder with a checkpoint"
    )


class SamSettings(_Section):
    model: str = Field("vit_b", description="`vit_b`, `vit_l` or `vit_h`")
    checkpoint: str = Field("auto", description="file with the weights; `auto`: the one in the models folder")
    points_per_side: int = Field(16, ge=1, le=128, description="points per side of the grid of prompts")


class ModelSettings(_Section):
    folder: str = Field("auto", description="folder of weights; `auto`: ARR_STREAM_MODELS or the user's cache")
    download: bool = Field(False, description="download missing weights")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="device of CLIP and SAM")


class RelevanceSettings(_Section):
    trust: Unit = Field(0.5, description="flow confidence at which a model's propagated result has full weight")
    language: Literal["auto", "lexicon", "clip"] = Field(
        "auto",
        description="interpreter of text queries; `auto`: the lexicon if it knows every word, else CLIP if in use",
    )


class ScoringSettings(_Section):
    """Weights of the scorers and of their balance: one setting, a table that `arr-stream tune` writes."""

    text: Unit = Field(0.8, description="weight of text and text-like places without a dominant query")
    saliency: Unit = Field(0.9, description="perspective: weight of saliency, the contrast to the rest of the frame")
    motion: Unit = Field(0.3, description="perspective: weight of motion against the camera")
    figure: Unit = Field(1.0, description="perspective: weight of cells of moving objects")
    fovea: Unit = Field(0.7, description="perspective: share that the place farthest from the fovea loses")
    capture: Unit = Field(0.3, description="share that information and saliency lose while anything moves")
    change: Unit = Field(0.95, description="share of the score for change, if anything changes before a still camera")
    change_moving: Unit = Field(0.25, description="the same on a moving camera")
    attention: Unit = Field(0.5, description="participation: weight of a model's own attention")
    history: Unit = Field(0.2, description="participation: weight of earlier queries and attention")
    information: Unit = Field(0.15, description="weight of information (fine detail) without a dominant query")
    perspective: Unit = Field(0.8, description="weight of perspective, likewise")
    stay: Unit = Field(0.05, description="weight of recently chosen places, likewise")
    settling: Unit = Field(
        0.5, description="share of a query's score that perspective reranks; all of it if anything clearly moves"
    )
    commitment: Unit = Field(0.97, description="weight of a fully relevant place against all others")
    commitment_power: float = Field(
        0.5, gt=0, le=4, description="exponent of the highest relevance in the commitment to the query"
    )


def _checked_budget(budget: str) -> str:
    budget_tokens(budget, 1)
    return budget


class SelectionSettings(_Section):
    budget: Annotated[str, AfterValidator(_checked_budget)] = Field(
        "auto", description="tokens a frame, or a share of the grid (`10%`); `auto`: 273, or a smaller grid"
    )
    per_second: float = Field(
        0.0,
        ge=0,
        description="tokens a second of the stream's time, spent on changes, at most `budget` a frame, and none on "
        "cells that the model has (for any `novelty`); 0: `budget` on every frame",
    )
    strategy: Literal["topk", "proportional", "canonical", "tiers"] = Field(
        "topk", description="choice of cells from the scores"
    )
    cascade: Literal["on", "off"] = Field("off", description="score regions first, then only the cells of the best")
    context_share: Unit = Field(
        0.0, description="largest share of the tokens for coarse cells, which show more of the frame; 0: none"
    )
    fine_share: Unit = Field(
        0.5,
        description="largest share of the tokens for cells finer than the texture, where the source has more pixels "
        "and shows text that is small; 0: none",
    )
    novelty: Literal["mark", "skip", "off"] = Field(
        "mark", description="cells the model already has: mark them, or skip them and choose others"
    )


TINY = "tiny"
"""Value of `vlm.model` and of `clip.model` for the model that is part of arr-stream."""


class VlmSettings(_Section):
    model: str = Field(
        "",
        description="Qwen3-VL: a hub name, a folder with a checkpoint, or `tiny`, the default, which knows drawn "
        "shapes; with a server, its name there",
    )
    endpoint: str = Field("", description="address of an OpenAI-compatible server instead of a model of our own")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the model runs")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "int4"] = Field(
        "auto",
        description="type of the weights; `auto`: as saved, float32 on a CPU; `int8` and `int4` quantise linear "
        "layers with bitsandbytes",
    )
    mode: Literal["sparse", "prune", "weight"] = Field(
        "sparse",
        description="`sparse` encodes the chosen cells, `prune` encodes all and keeps the chosen, "
        "`weight` weighs all by relevance",
    )
    media: Literal["video", "image"] = Field(
        "video", description="frames in pairs with timestamps, or each as a picture"
    )
    fps: float = Field(2.0, gt=0, le=240, description="frames a second sent to the model")
    context_tokens: int = Field(8192, ge=64, description="most tokens in the memory, question and answer included")
    answer_tokens: int = Field(128, ge=1, description="most tokens of an answer")
    refresh_seconds: float = Field(
        0.0,
        ge=0,
        description="period of rebuilding the memory and sending the chosen cells anew; 0: only at cuts and when full",
    )
    feedback: bool = Field(False, description="add the model's attention to the relevance of the cells")
    instruction: str = Field("", description="system prompt of the model")
    timeout_seconds: float = Field(60.0, gt=0, description="longest wait for a server")
    key_variable: str = Field("OPENAI_API_KEY", description="environment variable that holds the server's key")


class LiveSettings(_Section):
    policy: Literal["latest", "every"] = Field(
        "latest", description="process the newest frame, or every frame while the buffer has room"
    )
    buffer_frames: int = Field(
        64,
        ge=1,
        le=4096,
        description="with `every`: size of the queue; when it is full, the oldest frame is dropped and counted",
    )
    size: str = Field(
        "auto",
        pattern=r"^(auto|[0-9]+x[0-9]+)$",
        description="WIDTHxHEIGHT requested from a camera; `auto`: its own",
    )
    fps: float = Field(0.0, ge=0, le=1000, description="frames a second requested from a camera; 0: its own")
    rtsp_transport: Literal["tcp", "udp"] = Field("tcp", description="transport protocol of RTSP")
    connect_seconds: float = Field(
        10.0, gt=0, le=3600, description="longest wait for a connection and its first picture"
    )
    stall_seconds: float = Field(5.0, gt=0, le=3600, description="time without data after which a source is reopened")
    max_streams: int = Field(8, ge=1, le=64, description="most streams of `serve`")
    adapt: bool = Field(True, description="lower quality under load to hold the frame rate, and restore it after")


class RecordSettings(_Section):
    timings: Literal["auto", "on", "off"] = Field(
        "auto",
        description="write processing times; `auto`: in real time only, so that a file's records are reproducible",
    )


class VideoSettings(_Section):
    view: str = Field(
        "patches",
        description="view in annotated videos and the window: `source`, `patches`, `relevance`, `clusters`, `flow`, "
        "`text`, `history` or `channel:NAME`",
    )
    crf: int = Field(23, ge=0, le=51, description="H.264 quality, lower is better and larger")


class Settings(_Section):
    """All settings. `Settings()` holds the defaults."""

    grid: GridSettings = GridSettings()
    source: SourceSettings = SourceSettings()
    loop: LoopSettings = LoopSettings()
    keyframes: KeyframeSettings = KeyframeSettings()
    clip: ClipSettings = ClipSettings()
    sam: SamSettings = SamSettings()
    models: ModelSettings = ModelSettings()
    relevance: RelevanceSettings = RelevanceSettings()
    scoring: ScoringSettings = ScoringSettings()
    selection: SelectionSettings = SelectionSettings()
    vlm: VlmSettings = VlmSettings()
    live: LiveSettings = LiveSettings()
    video: VideoSettings = VideoSettings()
    records: RecordSettings = RecordSettings()

    @classmethod
    def load(cls, preset: Path | str | None = None, overrides: Iterable[str] = ()) -> Settings:
        """Return the defaults, overridden by a preset and then by `key=value` texts.

        Raises:
            PresetNotFound: The preset is missing or not TOML.
            UnknownSetting: A key that does not exist; names the nearest one.
            InvalidSetting, BudgetError: A value that its key does not allow.
        """
        merged: dict[str, Any] = {}
        if preset is not None:
            for path, values in _presets(Path(preset)):
                _merge(merged, values, origin=str(path))
        for override in overrides:
            key, sign, value = override.partition("=")
            if not sign:
                raise InvalidSetting(f"--set {override!r} has no '='", remedy="write --set key=value")
            _merge(merged, _nest(key.strip(), _parse_value(value.strip())), origin=f"--set {override}")
        return cls.checked(merged)

    def with_values(self, values: Mapping[str, Any]) -> Settings:
        """Return a copy with some dotted keys changed, such as `{"selection.budget": "10%"}`."""
        merged = self.model_dump()
        for key, value in values.items():
            _merge(merged, _nest(key, value), origin="settings")
        return self.checked(merged)

    def for_live(self) -> Settings:
        """Return a copy in which the budget `auto` is a quarter of the grid.

        Live pictures are small: 273 cells are all of 640x360, which would leave no choice.
        """
        return self.with_values({"selection.budget": "25%"}) if self.selection.budget == "auto" else self

    def for_memory(self) -> Settings:
        """Return a copy in which cells are chosen by relevance alone.

        `selection.novelty=skip` assumes a model that is sent every frame. A model that answers questions is sent a few
        frames a second, and its memory keeps a record of the cells that it holds.
        """
        return self.with_values({"selection.novelty": "mark"}) if self.selection.novelty == "skip" else self

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Settings:
        """Return settings from nested values; raise errors of this package."""
        try:
            return cls.model_validate(values)
        except ValidationError as exc:
            first = exc.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise InvalidSetting(
                f"{key}={redact_url(repr(first['input']))}: {first['msg'].lower()}",
                remedy="see `arr-stream settings`",
            ) from exc


@lru_cache(maxsize=1)
def setting_keys() -> dict[str, tuple[Any, str]]:
    """Return every dotted key with its default and its description; `scoring` is one key for all weights."""
    defaults = Settings()
    return {"scoring": ("fitted", "the scorers' weights, a table that `arr-stream tune` writes into a preset")} | {
        f"{section}.{name}": (getattr(getattr(defaults, section), name), info.description or "")
        for section in Settings.model_fields
        if section != "scoring"
        for name, info in type(getattr(defaults, section)).model_fields.items()
    }


def _presets(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the presets that a preset includes (a file of its folder, or a bare name), then the preset itself."""
    values = _read_preset(path)
    included = values.pop("include", [])
    names = [included] if isinstance(included, str) else included
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidSetting(f"{path}: include={included!r}", remedy='write include = "NAME.toml", or a list of such')
    for name in names:
        if "include" in (others := _read_preset(path.parent / name)):
            raise InvalidSetting(f"{path.parent / name}: included, and includes others", remedy="include these as well")
        yield path.parent / name, others
    yield path, values


def _read_preset(path: Path) -> dict[str, Any]:
    # os.path is False for a name that no file can have, where Path raises.
    named = PRESETS / f"{path.name}.toml"
    if not path.suffix and not os.path.exists(path) and os.path.exists(named):  # noqa: PTH110
        path = named
    if not os.path.isfile(path):  # noqa: PTH113
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.toml")], n=1, cutoff=0.4)
        known = ", ".join(sorted(each.stem for each in PRESETS.glob("*.toml")))
        hint = f"did you mean {path.parent / near[0]}?" if near else f"give a TOML file, or one of {known}"
        raise PresetNotFound(f"{path}: no such preset", remedy=hint)
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST_PRESET_BYTES + 1)
        if len(raw) > _LARGEST_PRESET_BYTES:
            raise ValueError(f"more than {_LARGEST_PRESET_BYTES} bytes")
        return tomllib.loads(raw.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as exc:  # Very long numbers and deep brackets are valid TOML.
        raise PresetNotFound(f"{path}: not a readable TOML file: {exc}", remedy="see pipelines/ for examples") from exc


def _nest(dotted: str, value: Any) -> dict[str, Any]:
    for part in reversed(dotted.split(".")):
        value = {part: value}
    return dict(value)


def _parse_value(text: str) -> Any:
    """Return a text's value if it is valid TOML, else the text itself (`none`, `10%`)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _merge(into: dict[str, Any], values: Mapping[str, Any], *, origin: str, path: str = "") -> None:
    known = [key for key in setting_keys() if "." in key] + [f"scoring.{name}" for name in ScoringSettings.model_fields]
    for name, value in values.items():
        key = f"{path}{name}"
        if isinstance(value, Mapping) and not path:
            _merge(into.setdefault(name, {}), value, origin=origin, path=f"{name}.")
            continue
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            raise UnknownSetting(f"{redact_url(origin)}: unknown setting {key!r}", remedy=f"did you mean {near[0]!r}?")
        # A budget may be given as a number.
        into[name] = str(value) if key == "selection.budget" else value


def public_settings(settings: Settings) -> dict[str, Any]:
    """Return all settings as plain JSON values, without the secrets of addresses."""
    return {
        section: {key: redact_url(value) if isinstance(value, str) else value for key, value in values.items()}
        for section, values in settings.model_dump(mode="json").items()
    }
