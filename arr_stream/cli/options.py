"""Groups of options that several commands share.

Each group is declared once, checks its own options, and builds the settings and parts that they describe.
typer knows only parameters of functions; `grouped` gives it the fields of the groups as parameters.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import typer

from arr_stream.cli.console import Reporter, reporting
from arr_stream.errors import ArrStreamError, BudgetError, InvalidSetting, OutputUnwritable
from arr_stream.files import STANDARD_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arr_stream.config import Settings
    from arr_stream.consumer import Consumer
    from arr_stream.draw.annotate import AnnotatedVideo
    from arr_stream.live.webhook import Webhook
    from arr_stream.records.provenance import Question
    from arr_stream.relevance.query import Query
    from arr_stream.stream import Stream
    from arr_stream.vlm.watcher import Plan

LOOK, READ, WRITE, RUN = "What to look for", "What to read", "What to write", "How to run"
ASK, MODEL, ALERT = "What to ask", "Which model", "Alerts"
"""Panels of the help."""

Source = Annotated[str, typer.Argument(help="A video file, a folder or glob of pictures, or an animated GIF.")]
Realtime = Annotated[bool, typer.Option("--realtime", help="Play at the source's own speed.", rich_help_panel=RUN)]


class Group:
    """Options that belong together: the fields of a frozen dataclass, each annotated with its `typer.Option`.

    A field may be a group itself. Options that conflict raise `InvalidSetting` when the group is made.

    Attributes:
        panel: Help panel for options that name none.
    """

    panel: ClassVar[str | None] = None

    def values(self) -> dict[str, object]:
        """Return the settings behind the options, by dotted key; None for an option that was not given."""
        return {}


class But:
    """Marker in `Annotated[SomeGroup, But(...)]`: fields that a command leaves at their defaults, and new help."""

    def __init__(self, *without: str, **help: str) -> None:
        self.without, self.help = without, help


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose options are its own parameters and the fields of its groups."""
    hints = get_type_hints(command, include_extras=True)
    flat: list[inspect.Parameter] = []
    for name, own in inspect.signature(command).parameters.items():
        group, but = _group(hints[name])
        flat += _options(group, but) if group else [own.replace(annotation=hints[name], kind=own.KEYWORD_ONLY)]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        made: dict[str, Any] = {}
        for name in inspect.signature(command).parameters:
            group, but = _group(hints[name])
            made[name] = _built(group, but, given) if group else given[name]
        try:
            command(**made)
        except ArrStreamError as error:
            _name_options(error, dict(_typed(made.values())))
            raise

    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in flat}
    return call


def _typed(values: Iterable[object]) -> Iterator[tuple[str, str]]:
    """Yield the setting and the option, such as `("vlm.endpoint", "--endpoint")`, of each option that was given."""
    for group in values:
        if isinstance(group, Group):
            own = {field.name: getattr(group, field.name) for field in fields(group)}  # type: ignore[arg-type]
            yield from _typed(own.values())
            for key, value in given_values(group).items():
                names = [name for name, each in own.items() if str(each) == str(value)]
                if names:
                    yield key, "--" + max(names, key=key.endswith).replace("_", "-")


def _name_options(error: ArrStreamError, options: dict[str, str]) -> None:
    """Replace the setting in an error's message by the option that the user typed."""
    for key, option in options.items():
        error.message = error.message.replace(f"{key}=", f"{option} ").replace(key, option)
        error.remedy = error.remedy and error.remedy.replace(key, option)
    error.args = (f"{error.message}; {error.remedy}" if error.remedy else error.message,)


def _group(hint: Any) -> tuple[type[Group] | None, But]:
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    but = next((note for note in notes if isinstance(note, But)), But())
    return (kind if isinstance(kind, type) and issubclass(kind, Group) else None), but


def _options(group: type[Group], but: But) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):  # type: ignore[arg-type]
        hint, (inner, inner_but) = hints[field.name], _group(hints[field.name])
        if inner is not None:
            yield from _options(inner, inner_but)
        elif field.name not in but.without:
            kind, option = get_args(hint)
            option = copy.copy(option)
            option.help = but.help.get(field.name, option.help)
            option.rich_help_panel = option.rich_help_panel or group.panel
            annotation = Annotated[kind, option]  # type: ignore[valid-type]
            keyword = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(field.name, keyword, default=field.default, annotation=annotation)


def _built(group: type[Group], but: But, given: dict[str, Any]) -> Group:
    made: dict[str, Any] = {}
    for name, hint in get_type_hints(group, include_extras=True).items():
        inner, inner_but = _group(hint)
        if inner is not None:
            made[name] = _built(inner, inner_but, given)
        elif name in given and name not in but.without:
            made[name] = given[name]
    return group(**made)


def needs(option: str, others: dict[str, object], remedy: str | None = None) -> None:
    """Refuse options that have no effect without another one.

    Raises:
        InvalidSetting: One of them was given.
    """
    _refuse(others, f"without {option}", remedy or f"give {option} as well")


def excludes(option: str, others: dict[str, object], why: str) -> None:
    """Refuse options that have no effect beside another one.

    Raises:
        InvalidSetting: One of them was given.
    """
    _refuse(others, f"beside {option}", f"leave it out: {why}")


def _refuse(options: dict[str, object], where: str, remedy: str) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        raise InvalidSetting(f"{', '.join(given)} {where}", remedy=remedy)


@dataclass(frozen=True)
class LookOptions(Group):
    """Options for the queries and the token budget."""

    panel: ClassVar = LOOK
    query: Annotated[list[str] | None, typer.Option("--query", "-q", help="What to look for; may be repeated.")] = None
    region: Annotated[str | None, typer.Option(help="Box x,y,w,h in pixels of the first frame.")] = None
    mask: Annotated[Path | None, typer.Option(help="Picture, white where the object is on the first frame.")] = None
    region_at: Annotated[float, typer.Option(help="Time in seconds of the frame the box or mask belongs to.")] = 0.0
    example: Annotated[Path | None, typer.Option(help="Picture of what to look for.")] = None
    gaze: Annotated[Path | None, typer.Option(help="CSV of gaze samples: pts_seconds,x,y.")] = None
    budget: Annotated[str | None, typer.Option(help="Tokens a frame, or a share of the grid such as 10%.")] = None
    budget_per_second: Annotated[
        float | None, typer.Option(help="Tokens a second, spent where something happens; --budget is a frame's most.")
    ] = None

    def __post_init__(self) -> None:
        if self.budget is not None:
            from arr_stream.selection.budget import budget_tokens

            budget_tokens(self.budget, 1)
        if self.budget_per_second is not None and not 0 <= self.budget_per_second < math.inf:
            raise BudgetError(
                f"--budget-per-second {self.budget_per_second:g}",
                remedy="give tokens above 0, or 0 for every frame alike",
            )
        if self.region_at and self.region is None and self.mask is None:
            raise InvalidSetting(
                "--region-at without --region or --mask", remedy="give --region x,y,w,h or --mask FILE as well"
            )

    def values(self) -> dict[str, object]:
        return {"selection.budget": self.budget, "selection.per_second": self.budget_per_second}

    def queries(self, otherwise: str | None = None) -> list[Query]:
        """Return the queries; without any `--query`, those derived from the question `otherwise`.

        Raises:
            QueryError: See `arr_stream.errors`.
        """
        from arr_stream.relevance.query import make_queries
        from arr_stream.relevance.question import sought

        texts = self.query if self.query is not None else sought(otherwise or "")
        return make_queries(texts, self.region, self.region_at, self.example, self.mask)


@dataclass(frozen=True)
class ReadOptions(Group):
    """Options for the frames of a source to read."""

    panel: ClassVar = READ
    video_stream: Annotated[int | None, typer.Option(help="Which of several video streams, from 0.")] = None
    start: Annotated[float | None, typer.Option(help="Start at this second.")] = None
    end: Annotated[float | None, typer.Option(help="End before this second.")] = None
    stride: Annotated[int, typer.Option(min=1, help="Take every Nth frame.")] = 1
    max_frames: Annotated[int | None, typer.Option(min=1, help="Stop after N frames.")] = None

    @property
    def span(self) -> dict[str, Any]:
        """Return the range of frames, as keyword arguments of `arr_stream.open` and of a batch's jobs."""
        ends = {"start_seconds": self.start, "end_seconds": self.end}
        return {**ends, "stride": self.stride, "max_frames": self.max_frames}


@dataclass(frozen=True)
class WriteOptions(Group):
    """Options for the files of a run."""

    panel: ClassVar = WRITE
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Annotated video (MP4).")] = None
    view: Annotated[
        str,
        typer.Option(help="What the video shows: patches, relevance, clusters, flow, text, history or channel:NAME."),
    ] = "patches"
    patches: Annotated[Path | None, typer.Option(help="Records, one JSON line a frame; - for standard output.")] = None
    report: Annotated[Path | None, typer.Option(help="Folder for contact sheet, latency plot and summary.")] = None
    audio: Annotated[bool, typer.Option(help="Keep the source's sound.")] = True
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite files.")] = False

    @property
    def written(self) -> list[Path]:
        """Return the files and folders that exist now."""
        paths = [path for path in (self.output, self.patches, self.report) if path is not None]
        return [path for path in paths if path == STANDARD_OUTPUT or path.exists()]

    def check(self, source: str) -> None:
        """Check that every output can be written, before models are loaded.

        Raises:
            InvalidSetting: There is no such view.
            OutputError: See `arr_stream.errors`.
        """
        from arr_stream.files import prepare_output

        if self.view != "patches":
            from arr_stream.draw.views import check_view

            check_view(self.view)
        for path in (self.output, self.patches):
            if path is not None and path.exists() and Path(source).exists() and path.samefile(source):
                raise OutputUnwritable(
                    f"{path}: is the source itself", remedy="choose another name; --force is no help here"
                )
        if self.output is not None and self.patches is not None and self.output.resolve() == self.patches.resolve():
            raise OutputUnwritable(
                f"{self.output}: named twice, for the video and the records", remedy="give each its own name"
            )
        if self.output is not None:
            prepare_output(self.output, self.force)
        if self.patches is not None:
            prepare_output(self.patches, self.force, direct=True)
        if self.report is not None:
            from arr_stream.draw.report import prepare_report

            prepare_report(self.report, self.force)

    def consumers(self, stream: Stream, question: Question | None = None) -> list[Consumer]:
        """Return the consumers that write; the records include the question to the model."""
        if not (self.output or self.report or self.patches):
            return []
        from arr_stream.outputs import annotated_video, records_of, report_of

        consumers: list[Consumer] = []
        if self.output is not None:
            video = annotated_video(stream, self.output, view=self.view, audio=self.audio, force=self.force)
            consumers.append(self._in_background(video))
        if self.report is not None:
            consumers.append(report_of(stream, self.report, force=self.force))
        # Last: a frame's record implies that all other outputs of the frame are written.
        if self.patches is not None:
            consumers.append(records_of(stream, self.patches, force=self.force, question=question))
        return consumers

    def _in_background(self, video: AnnotatedVideo) -> Consumer:
        from arr_stream.consumer import BackgroundConsumer

        return BackgroundConsumer(video)


@dataclass(frozen=True)
class SettingsOptions(Group):
    """Options for settings: a preset, single settings, and the models that they name."""

    panel: ClassVar = RUN
    preset: Annotated[Path | None, typer.Option(help="Settings from a TOML file.")] = None
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")] = None
    clip_model: Annotated[
        str | None,
        typer.Option(
            help="Understand words with CLIP: `tiny`, NAME:PRETRAINED or a checkpoint (`arr-stream models list`)."
        ),
    ] = None
    sam_checkpoint: Annotated[Path | None, typer.Option(help="Regions from SAM, with these weights.")] = None
    download: Annotated[bool, typer.Option("--download", help="Fetch weights that are missing.")] = False

    def values(self) -> dict[str, object]:
        return {
            "keyframes.embeddings": "clip" if self.clip_model is not None else None,
            "clip.model": self.clip_model,
            "keyframes.clusters": "sam" if self.sam_checkpoint is not None else None,
            "sam.checkpoint": str(self.sam_checkpoint) if self.sam_checkpoint is not None else None,
            "models.download": self.download or None,
        }

    def load(self, *others: Group) -> Settings:
        """Return all settings: the options of these groups override --set, which overrides the preset.

        Raises:
            SettingsError: See `arr_stream.errors`.
        """
        from arr_stream.config import Settings

        return Settings.load(self.preset, self.overrides or ()).with_values(given_values(self, *others))


def given_values(*groups: Group) -> dict[str, object]:
    """Return the settings behind the options of groups that were given, by dotted key."""
    return {key: value for group in groups for key, value in group.values().items() if value is not None}


def without_skipping(settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Return settings `for_memory`, and a notice if that changes them."""
    notice = "selection.novelty=skip: cells are chosen as with `mark`, and the model's memory leaves out what it holds"
    made = settings.for_memory()
    return made, () if made is settings else (notice,)


@dataclass(frozen=True)
class WhenOptions(Group):
    """Options for the schedule of a question."""

    panel: ClassVar = ASK
    every: Annotated[float | None, typer.Option(help="Answer every so many seconds of the video.")] = None
    watch: Annotated[bool, typer.Option("--watch", help="Answer at the start and when the scene changes.")] = False

    def __post_init__(self) -> None:
        if self.every is not None and self.watch:
            raise InvalidSetting("--every and --watch", remedy="choose one of them")

    def plan(self, question: str, otherwise: Literal["end", "change"]) -> Plan:
        """Return the plan for a question; `otherwise` is its schedule if no option gives one."""
        from arr_stream.vlm.watcher import Plan

        if self.every is not None:
            return Plan(question, "every", self.every)
        return Plan(question, "change" if self.watch else otherwise)


@dataclass(frozen=True)
class ModelOptions(Group):
    """Options for the model that answers."""

    panel: ClassVar = MODEL
    model: Annotated[
        str | None,
        typer.Option(help="Qwen3-VL: a hub name, a folder or `tiny`; with --endpoint its name.", show_default="tiny"),
    ] = None
    endpoint: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible server, such as http://127.0.0.1:8000/v1.")
    ] = None

    def values(self) -> dict[str, object]:
        return {"vlm.model": self.model, "vlm.endpoint": self.endpoint}


@dataclass(frozen=True)
class OwnModelOptions(ModelOptions):
    """Options for the model that answers, and for running a local one."""

    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None
    quantize: Annotated[str | None, typer.Option(help="none, int8 or int4.")] = None
    mode: Annotated[str | None, typer.Option(help="sparse, prune or weight (docs/model.md).")] = None

    def values(self) -> dict[str, object]:
        return super().values() | {f"vlm.{name}": value for name, value in self._own.items()}

    def check(self, settings: Settings, others: dict[str, object] | None = None) -> None:
        """Refuse these options, and others, if a server answers.

        Raises:
            InvalidSetting: One of them was given.
        """
        if settings.vlm.endpoint:
            own = {f"--{name}": value for name, value in self._own.items()}
            excludes("--endpoint", own | (others or {}), "the server decides")

    @property
    def _own(self) -> dict[str, object]:
        return {"device": self.device, "dtype": self.dtype, "quantize": self.quantize, "mode": self.mode}


@dataclass(frozen=True)
class AlertOptions(Group):
    """Options for the alert rules of live streams, and their actions."""

    panel: ClassVar = ALERT
    when: Annotated[
        list[str] | None, typer.Option(help="Alert, such as 'relevance > 0.6 for 2s'; may be repeated.")
    ] = None
    post: Annotated[list[str] | None, typer.Option(help="Address that each alert is sent to.")] = None

    def rules(self, settings: Settings, queries: Sequence[Query], *, answers: bool = True) -> tuple[str, ...]:
        """Return the rules; check them, and the addresses, before anything is opened.

        Args:
            settings: Settings of the streams.
            queries: Queries of the streams; a rule about relevance would never fire if no query is understood.
            answers: True if a model will answer; otherwise a rule about answers would never fire.

        Raises:
            InvalidSetting: A rule or an address is malformed, or a rule can never fire.
        """
        from arr_stream.keyframes.objects import detected_labels
        from arr_stream.live.rules import parse_rule

        by_model = settings.keyframes.embeddings == "clip" and settings.relevance.language != "lexicon"
        labels = detected_labels(settings)
        understood = not queries or by_model or any(getattr(query.detected(labels), "terms", True) for query in queries)
        rules = tuple(map(parse_rule, self.when or ()))
        for rule in rules:
            if rule.answer and not answers:
                raise InvalidSetting(
                    f"rule {rule.text!r} waits for answers, and no model is asked", remedy="give --question"
                )
            if rule.needs_relevance and not understood:
                named = ", ".join(repr(query.label) for query in queries)
                raise InvalidSetting(
                    f"rule {rule.text!r} never holds: no word of {named} is understood",
                    remedy="use words of docs/queries.md; objects need a detector, other words --clip-model",
                )
        self.webhooks()
        return tuple(dict.fromkeys(rule.text for rule in rules))

    def webhooks(self) -> list[Webhook]:
        """Return a new webhook for each address; raises `InvalidSetting` for a malformed one."""
        from arr_stream.live.webhook import Webhook

        return [Webhook(address) for address in self.post or ()]


@dataclass(frozen=True)
class TellOptions(Group):
    """Options for the progress display of a run."""

    panel: ClassVar = RUN
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors, answers and warnings.")] = False
    log_json: Annotated[bool, typer.Option("--log-json", help="Progress as JSON lines.")] = False

    def reporting(self, total: int | None) -> AbstractContextManager[Reporter]:
        """Return the reporter that fits the options, for about `total` frames."""
        return reporting(total, quiet=self.quiet, log_json=self.log_json)
