"""Options that several commands share, and the settings that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from arr_stream.cli.console import Log
from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.relevance.query import Query as AnyQuery
    from arr_stream.vlm.watcher import Plan

LOOK, READ, WRITE, RUN = "Query and budget", "Input", "Output", "Run"
ASK, ALERT = "Model", "Alerts"
"""Panels of the help."""


def option(help: str, panel: str, *names: str, **more: Any) -> Any:
    """Return an option for a panel of the help; see `typer.Option` for the rest."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


Source = Annotated[str, typer.Argument(help="A video file, a folder or glob of pictures, or an animated GIF.")]

Query = Annotated[list[str] | None, option("Text query; repeatable.", LOOK, "--query", "-q")]
Region = Annotated[str | None, option("Box x,y,w,h in pixels; @SECONDS after it: of a later frame.", LOOK)]
Example = Annotated[Path | None, option("Picture of the object to find.", LOOK)]
Budget = Annotated[str | None, option("Tokens a frame, or a share of the grid such as 10%.", LOOK)]

Start = Annotated[float | None, option("Start at this second.", READ)]
End = Annotated[float | None, option("End before this second.", READ)]
MaxFrames = Annotated[int | None, option("Stop after N frames.", READ, min=1)]

Video = Annotated[Path | None, option("Annotated video (MP4).", WRITE, "--output", "-o")]
Patches = Annotated[Path | None, option("Records, one JSON line a frame and an answer; - for standard output.", WRITE)]
Report = Annotated[Path | None, option("Folder for contact sheet, latency plot and summary.", WRITE)]
Force = Annotated[bool, option("Overwrite files.", WRITE, "--force", "-f")]

Model = Annotated[
    str | None, option("Qwen3-VL: a hub name, a folder or `tiny`; with --endpoint its name.", ASK, show_default="tiny")
]
Download = Annotated[bool, option("Fetch weights that are missing.", ASK, "--download")]
Endpoint = Annotated[str | None, option("An OpenAI-compatible server, such as http://127.0.0.1:8000/v1.", ASK)]
Every = Annotated[float | None, option("Interval of answers in seconds.", ASK)]
Watch = Annotated[bool, option("Answer when the scene changes.", ASK, "--watch")]

When = Annotated[list[str] | None, option("Alert, such as 'relevance > 0.6 for 2s'; repeatable.", ALERT)]
Post = Annotated[list[str] | None, option("Address to POST alerts to, as JSON.", ALERT)]

Preset = Annotated[Path | None, option("Settings from a TOML file, or a preset's name.", RUN, "--preset")]
Overrides = Annotated[list[str] | None, option("key=value, over the preset; see `arr-stream settings`.", RUN, "--set")]
LogOption = Annotated[
    Log, option("Progress on standard error: text, json (an object a line), or quiet (errors, warnings).", RUN, "--log")
]


def load_settings(
    preset: Path | None,
    overrides: Sequence[str] | None,
    *,
    budget: str | None = None,
    model: str | None = None,
    endpoint: str | None = None,
    download: bool = False,
) -> Settings:
    """Return all settings: options override `--set`, which overrides the preset.

    Raises:
        SettingsError: See `arr_stream.errors`.
    """
    from arr_stream.config import Settings

    return Settings.load(preset, overrides or ()).with_values(option_values(budget, model, endpoint, download=download))


def option_values(
    budget: str | None, model: str | None = None, endpoint: str | None = None, *, download: bool = False
) -> dict[str, object]:
    """Return the settings of the options that were given, by dotted key."""
    given = {
        "selection.budget": budget,
        "vlm.model": model,
        "vlm.endpoint": endpoint,
        "models.download": download or None,
    }
    return {key: value for key, value in given.items() if value is not None}


def make_plan(question: str, every: float | None, watch: bool, *, otherwise: Literal["end", "change"]) -> Plan:
    """Return the plan for a question; `otherwise` is its schedule if no option gives one.

    Raises:
        InvalidSetting: Two schedules are given.
    """
    if every is not None and watch:
        raise InvalidSetting("--every and --watch cannot be combined", remedy="choose one of them")

    from arr_stream.vlm.watcher import Plan

    if every is not None:
        return Plan(question, "every", every)
    return Plan(question, "change" if watch else otherwise)


def needs(option: str, others: Mapping[str, object], remedy: str | None = None) -> None:
    """Refuse options that have no effect without another one.

    Raises:
        InvalidSetting: One of them was given.
    """
    given = [name for name, value in others.items() if value]
    if given:
        raise InvalidSetting(f"{', '.join(given)} without {option}", remedy=remedy or f"give {option} as well")


def alert_rules(when: Sequence[str] | None, settings: Settings, queries: Sequence[AnyQuery]) -> tuple[str, ...]:
    """Return the rules, checked before anything is opened.

    Args:
        when: Values of `--when`.
        settings: Settings of the streams.
        queries: Queries of the streams; a rule about relevance would never fire if no query is understood.

    Raises:
        InvalidSetting: A rule is malformed, or can never fire.
    """
    from arr_stream.keyframes.objects import detected_labels
    from arr_stream.live.alerts import parse_rule
    from arr_stream.relevance.query import TextQuery

    by_model = settings.keyframes.embeddings == "clip" and settings.relevance.language != "lexicon"
    labels = detected_labels(settings)
    understood = (
        not queries
        or by_model
        or any(not isinstance(query, TextQuery) or query.detected(labels).terms for query in queries)
    )
    rules = tuple(map(parse_rule, when or ()))
    for rule in rules:
        if rule.needs_relevance and not understood:
            named = ", ".join(repr(query.label) for query in queries)
            raise InvalidSetting(
                f"rule {rule.text!r} never holds: no word of {named} is understood",
                remedy="use words of docs/queries.md; objects need a detector, other words --preset plain_words",
            )
    return tuple(dict.fromkeys(rule.text for rule in rules))
