"""Options of `webcam` and `stream`, the same in both."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from arr_stream.cli.options import (
    ASK,
    AlertOptions,
    But,
    Group,
    LookOptions,
    ModelOptions,
    SettingsOptions,
    TellOptions,
    WhenOptions,
    WriteOptions,
    excludes,
    needs,
)
from arr_stream.errors import EmptyQuery, InvalidSetting

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.consumer import Consumer
    from arr_stream.draw.annotate import AnnotatedVideo

LIVE, SHOW = "The source", "What to show"
"""Panels of the help."""


@dataclass(frozen=True)
class CaptureOptions(Group):
    """Options for capturing the source."""

    panel: ClassVar = LIVE
    size: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT asked of a camera or test source.")] = None
    fps: Annotated[float | None, typer.Option(help="Frames a second asked of a camera or test source.")] = None
    policy: Annotated[
        str | None, typer.Option(help="latest: the newest frame wins; every: each is taken while there is room.")
    ] = None
    duration: Annotated[float | None, typer.Option(help="Stop after so many seconds.")] = None
    max_frames: Annotated[int | None, typer.Option(min=1, help="Stop after N frames.")] = None

    def __post_init__(self) -> None:
        if self.duration is not None and not self.duration > 0:
            raise InvalidSetting(f"--duration {self.duration:g}", remedy="give seconds above 0")

    def values(self) -> dict[str, object]:
        return {"live.size": self.size, "live.fps": self.fps, "live.policy": self.policy}


@dataclass(frozen=True)
class ShowOptions(Group):
    """Options for showing the run."""

    panel: ClassVar = SHOW
    headless: Annotated[bool, typer.Option("--headless", help="Without a window.")] = False
    serve: Annotated[bool, typer.Option("--serve", help="In a browser instead of a window; see --port.")] = False
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of --serve (8080 if not given).")] = None

    def __post_init__(self) -> None:
        if not self.serve:
            needs("--serve", {"--port": self.port})


@dataclass(frozen=True)
class RecordOptions(WriteOptions):
    """Options for the files of a live run; recording never blocks the run."""

    output: Annotated[Path | None, typer.Option("--record", "-o", help="Annotated video (MP4).")] = None
    view: Annotated[
        str,
        typer.Option(
            help="source, patches, relevance, clusters, flow, text, history or channel:NAME; for the recording too.",
            rich_help_panel=SHOW,
        ),
    ] = "patches"
    audio: bool = False

    def _in_background(self, video: AnnotatedVideo) -> Consumer:
        from arr_stream.consumer import BackgroundConsumer

        return BackgroundConsumer(video, 8, drops_for=str(self.output))


@dataclass(frozen=True)
class QuestionOptions(Group):
    """Options for the question and its schedule."""

    panel: ClassVar = ASK
    question: Annotated[str | None, typer.Option(help="What to ask the model.")] = None
    when: Annotated[
        WhenOptions,
        But(every="Answer every so many seconds.", watch="Answer when the scene changes; so without --every."),
    ] = field(default_factory=WhenOptions)

    def __post_init__(self) -> None:
        if self.question is not None and not self.question.strip():
            raise EmptyQuery("the question is empty", remedy='ask something: --question "what is on the table?"')


@dataclass(frozen=True)
class LiveModelOptions(ModelOptions):
    """Options for the model that answers."""

    panel: ClassVar = ASK


@dataclass(frozen=True)
class LiveOptions(Group):
    """Options of `webcam` and `stream` besides the source."""

    look: Annotated[LookOptions, But("region_at", "mask", "gaze", region="Box x,y,w,h in pixels.")]
    capture: CaptureOptions
    show: ShowOptions
    write: Annotated[RecordOptions, But("audio", patches="Records, one JSON line a frame and an answer.")]
    model: Annotated[LiveModelOptions, But(model="Qwen3-VL: a hub name, a folder or `tiny`; with --endpoint its name.")]
    ask: QuestionOptions
    alerts: AlertOptions
    chosen: Annotated[SettingsOptions, But("sam_checkpoint")]
    tell: TellOptions

    def __post_init__(self) -> None:
        if self.show.serve:
            excludes("--serve", self._on_the_page(), "the page has it")
        elif self.ask.question is None:
            needs("--question", {"--every": self.ask.when.every, "--watch": self.ask.when.watch})
            needs("--question", {"--model": self.model.model, "--endpoint": self.model.endpoint})

    def _on_the_page(self) -> dict[str, object]:
        return {
            "--headless": self.show.headless,
            "--record": self.write.output,
            "--patches": self.write.patches,
            "--report": self.write.report,
            "--view": self.write.view != "patches",
            "--duration": self.capture.duration,
            "--max-frames": self.capture.max_frames,
            "--question": self.ask.question,
            "--every": self.ask.when.every,
            "--watch": self.ask.when.watch,
            "--region": self.look.region,
            "--example": self.look.example,
        }

    def settings(self) -> Settings:
        """Return all settings, for a live source.

        Raises:
            SettingsError: See `arr_stream.errors`.
        """
        return self.chosen.load(self.look, self.capture, self.model).for_live()
