"""Options that several commands have in common, so that they mean and say the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LOOK, READ, WRITE, RUN = "What to look for", "What to read", "What to write", "How to run"
"""Panels of the help."""

Source = Annotated[str, typer.Argument(help="A video file, a folder or glob of pictures, or an animated GIF.")]

Region = Annotated[str | None, typer.Option(help="Box x,y,w,h in pixels of the first frame.", rich_help_panel=LOOK)]
RegionAt = Annotated[float, typer.Option(help="Time in seconds of the frame the box belongs to.", rich_help_panel=LOOK)]
Example = Annotated[Path | None, typer.Option(help="Picture of what to look for.", rich_help_panel=LOOK)]
Budget = Annotated[
    str | None, typer.Option(help="Tokens a frame, or a share of the grid such as 10%.", rich_help_panel=LOOK)
]

Output = Annotated[Path | None, typer.Option("--output", "-o", help="Annotated video (MP4).", rich_help_panel=WRITE)]
Report = Annotated[
    Path | None, typer.Option(help="Folder for contact sheet, latency plot and summary.", rich_help_panel=WRITE)
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite files.", rich_help_panel=WRITE)]

VideoStream = Annotated[int | None, typer.Option(help="Which of several video streams, from 0.", rich_help_panel=READ)]
Start = Annotated[float | None, typer.Option(help="Start at this second.", rich_help_panel=READ)]
End = Annotated[float | None, typer.Option(help="End before this second.", rich_help_panel=READ)]
Stride = Annotated[int, typer.Option(min=1, help="Take every Nth frame.", rich_help_panel=READ)]
MaxFrames = Annotated[int | None, typer.Option(min=1, help="Stop after N frames.", rich_help_panel=READ)]
Sandbox = Annotated[
    bool,
    typer.Option("--sandbox", help="Decode in a process that can reach nothing but the file.", rich_help_panel=READ),
]

Preset = Annotated[Path | None, typer.Option(help="Settings from a TOML file.", rich_help_panel=RUN)]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.", rich_help_panel=RUN)]
ClipModel = Annotated[
    str | None,
    typer.Option(
        help="Understand words with CLIP: `tiny`, NAME:PRETRAINED or a checkpoint (`arr-stream models list`).",
        rich_help_panel=RUN,
    ),
]
Download = Annotated[bool, typer.Option("--download", help="Fetch weights that are missing.", rich_help_panel=RUN)]
Realtime = Annotated[bool, typer.Option("--realtime", help="Play at the source's own speed.", rich_help_panel=RUN)]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors and answers.", rich_help_panel=RUN)]
LogJson = Annotated[bool, typer.Option("--log-json", help="Progress as JSON lines.", rich_help_panel=RUN)]
