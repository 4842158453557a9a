"""`arr-stream cameras`, `channels` and `settings`: the available choices, in a table each."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from arr_stream.cli.console import out, print_line
from arr_stream.cli.measuring import Json, Overrides, Preset
from arr_stream.errors import CameraUnavailable

if TYPE_CHECKING:
    pass


def cameras(as_json: Json = False) -> None:
    """List the cameras of this machine and the argument that opens each."""
    from rich.table import Table

    from arr_stream.sources.live import list_cameras

    found = list_cameras()
    if as_json:
        out.print_json(json.dumps([asdict(camera) for camera in found]))
    elif found:
        table = Table("camera", "name", "opened by")
        for camera in found:
            table.add_row(str(camera.index), camera.name, f"arr-stream webcam {camera.index}")
        out.print(table)
    if not found:
        raise CameraUnavailable(
            "there is no camera on this machine",
            remedy="plug one in or allow its use, or try `arr-stream stream lavfi:testsrc2`",
        )


def channels(as_json: Json = False) -> None:
    """Print the 40 channels of the texture: order, names, ranges, when each is renewed."""
    from rich.table import Table

    from arr_stream.texture.layout import CHANNELS

    if as_json:
        rows = [
            {"index": c.index, "name": c.name, "range": [c.low, c.high], "renewed": c.renewed, "meaning": c.meaning}
            for c in CHANNELS
        ]
        out.print_json(json.dumps(rows))
        return
    table = Table(title="The 40 channels", title_justify="left")
    for heading in ("#", "name", "range", "renewed", "meaning"):
        table.add_column(heading, justify="right" if heading == "#" else "left", overflow="fold")
    for c in CHANNELS:
        span = "id" if c.high is None else f"{c.low:g}..{c.high:g}"
        table.add_row(str(c.index), c.name, span, c.renewed, c.meaning)
    out.print(table)


def settings(
    preset: Preset = None,
    overrides: Overrides = None,
) -> None:
    """List every setting with its value and meaning. Precedence: --set and options, then the preset, then defaults."""
    from rich.padding import Padding
    from rich.text import Text

    from arr_stream.config import Settings, setting_keys
    from arr_stream.plain_text import redact_url

    values = Settings.load(preset, overrides or ())
    for key, (default, meaning) in setting_keys().items():
        section, _, name = key.partition(".")
        value = getattr(getattr(values, section), name) if name else default
        if not name and values.scoring != Settings().scoring:
            value = "of the preset"
        changed = "" if value == default else f"  (default {default})"
        print_line(redact_url(f"{key} = {value}{changed}"))
        out.print(Padding(Text(meaning), (0, 0, 0, 4)))
