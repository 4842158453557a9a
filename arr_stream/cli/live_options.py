"""Options of `webcam` and `stream`, which mean and say the same in both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli import options
from arr_stream.config import Settings
from arr_stream.errors import EmptyQuery, InvalidSetting

LIVE, SHOW, ASK, ALERT = "The source", "What to show", "What to ask", "Alerts"
"""Panels of the help."""

Query = Annotated[
    list[str] | None,
    typer.Option("--query", "-q", help="What to look for; may be repeated.", rich_help_panel=options.LOOK),
]
Region = Annotated[str | None, typer.Option(help="Box x,y,w,h in pixels.", rich_help_panel=options.LOOK)]
Size = Annotated[str | None, typer.Option(help="WIDTHxHEIGHT asked of a camera or test source.", rich_help_panel=LIVE)]
Fps = Annotated[
    float | None, typer.Option(help="Frames a second asked of a camera or test source.", rich_help_panel=LIVE)
]
Policy = Annotated[
    str | None,
    typer.Option(help="latest: the newest frame wins; every: each is taken while there is room.", rich_help_panel=LIVE),
]
Duration = Annotated[float | None, typer.Option(help="Stop after so many seconds.", rich_help_panel=LIVE)]
MaxFrames = Annotated[int | None, typer.Option(min=1, help="Stop after N frames.", rich_help_panel=LIVE)]
View = Annotated[
    str,
    typer.Option(
        help="source, patches, relevance, clusters, flow, text or channel:NAME; for the recording too.",
        rich_help_panel=SHOW,
    ),
]
Headless = Annotated[bool, typer.Option("--headless", help="Without a window.", rich_help_panel=SHOW)]
Serve = Annotated[
    bool, typer.Option("--serve", help="In a browser instead of a window; see --port.", rich_help_panel=SHOW)
]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of --serve (8080 if not given).", rich_help_panel=SHOW)
]
Record = Annotated[
    Path | None, typer.Option("--record", "-o", help="Annotated video (MP4).", rich_help_panel=options.WRITE)
]
Patches = Annotated[
    Path | None, typer.Option(help="Records, one JSON line a frame and an answer.", rich_help_panel=options.WRITE)
]
Model = Annotated[
    str | None, typer.Option(help="Qwen3-VL: a hub name or a folder; with --endpoint its name.", rich_help_panel=ASK)
]
Endpoint = Annotated[
    str | None,
    typer.Option(help="An OpenAI-compatible server, such as http://127.0.0.1:8000/v1.", rich_help_panel=ASK),
]
Question = Annotated[str | None, typer.Option(help="What to ask the model.", rich_help_panel=ASK)]
Every = Annotated[float | None, typer.Option(help="Answer every so many seconds.", rich_help_panel=ASK)]
Watch = Annotated[
    bool,
    typer.Option("--watch", help="Answer when the scene changes; so without --every.", rich_help_panel=ASK),
]
When = Annotated[
    list[str] | None,
    typer.Option(help="Alert, such as 'relevance > 0.6 for 2s'; may be repeated.", rich_help_panel=ALERT),
]
Clips = Annotated[Path | None, typer.Option(help="Folder for a clip of each alert.", rich_help_panel=ALERT)]
Before = Annotated[float, typer.Option(min=0, max=60, help="Seconds before it in a clip.", rich_help_panel=ALERT)]
After = Annotated[float, typer.Option(min=0, max=300, help="Seconds after it in a clip.", rich_help_panel=ALERT)]
Run = Annotated[
    str | None, typer.Option(help="Command for each alert, such as 'notify-send {message}'.", rich_help_panel=ALERT)
]
Post = Annotated[str | None, typer.Option(help="Address that each alert is sent to.", rich_help_panel=ALERT)]


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What was given to `webcam` or `stream`, each under the name of its option.

    Raises:
        InvalidSetting: Options that do not go together.
        EmptyQuery: The question is empty.
    """

    source: str
    query: list[str] | None
    region: str | None
    example: Path | None
    budget: str | None
    size: str | None
    fps: float | None
    policy: str | None
    duration: float | None
    max_frames: int | None
    view: str
    headless: bool
    serve: bool
    port: int | None
    record: Path | None
    patches: Path | None
    report: Path | None
    force: bool
    model: str | None
    endpoint: str | None
    question: str | None
    every: float | None
    watch: bool
    when: list[str] | None
    clips: Path | None
    before: float
    after: float
    run: str | None
    post: str | None
    preset: Path | None
    overrides: list[str] | None
    clip_model: str | None
    download: bool
    quiet: bool
    log_json: bool

    def __post_init__(self) -> None:
        self._check_together()
        if self.question is not None and not self.question.strip():
            raise EmptyQuery("the question is empty", remedy='ask something: --question "what is on the table?"')
        if self.duration is not None and not self.duration > 0:
            raise InvalidSetting(f"--duration {self.duration:g}", remedy="give seconds above 0")

    def _check_together(self) -> None:
        if self.every is not None and self.watch:
            raise InvalidSetting("--every and --watch", remedy="choose one of them")
        if self.question is None and not self.serve:
            _needs("--question", {"--every": self.every, "--watch": self.watch})
            _needs("--question", {"--model": self.model, "--endpoint": self.endpoint})
        if not self.when:
            _needs("--when", {"--clips": self.clips, "--run": self.run, "--post": self.post})
        if not self.serve:
            _needs("--serve", {"--port": self.port})
            return
        alone = {
            "--headless": self.headless,
            "--record": self.record,
            "--patches": self.patches,
            "--report": self.report,
            "--view": self.view != "patches",
            "--duration": self.duration,
            "--max-frames": self.max_frames,
            "--question": self.question,
            "--every": self.every,
            "--watch": self.watch,
            "--region": self.region,
            "--example": self.example,
        }
        given = [name for name, value in alone.items() if value]
        if given:
            raise InvalidSetting(f"{', '.join(given)} beside --serve", remedy="leave it out: the page has it")

    @property
    def chosen(self) -> dict[str, object]:
        """The settings behind the options that were given, by dotted key."""
        values = {
            "selection.budget": self.budget,
            "live.size": self.size,
            "live.fps": self.fps,
            "live.policy": self.policy,
            "vlm.model": self.model,
            "vlm.endpoint": self.endpoint,
            "models.download": self.download or None,
            "keyframes.embeddings": "clip" if self.clip_model is not None else None,
            "clip.model": self.clip_model,
        }
        return {key: value for key, value in values.items() if value is not None}

    def settings(self) -> Settings:
        """All settings: options over --set over the preset.

        Raises:
            SettingsError: See `arr_stream.errors`.
        """
        return Settings.load(self.preset, self.overrides or ()).with_values(self.chosen).for_live()


def _needs(option: str, others: dict[str, object]) -> None:
    given = [name for name, value in others.items() if value]
    if given:
        raise InvalidSetting(f"{', '.join(given)} without {option}", remedy=f"give {option} as well")
