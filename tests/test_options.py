"""Options in groups: what a command shows of them, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from arr_stream.cli.options import But, Group, LookOptions, ReadOptions, SettingsOptions, given_values, grouped
from arr_stream.errors import InvalidSetting


@dataclass(frozen=True)
class Inner(Group):
    panel: ClassVar = "The inner ones"
    depth: Annotated[int, typer.Option(min=0, help="How deep.")] = 3
    colour: Annotated[str, typer.Option("--colour", "-c", help="Which colour.")] = "red"


@dataclass(frozen=True)
class Outer(Group):
    inner: Annotated[Inner, But(depth="How very deep.")]
    wide: Annotated[bool, typer.Option("--wide", help="Or not.", rich_help_panel="Elsewhere")] = False


Calls = list[tuple[object, ...]]


@pytest.fixture
def heard() -> Calls:
    return []


@pytest.fixture
def app(heard: Calls) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @grouped
    def command(place: Annotated[Path, typer.Argument()], outer: Outer, count: int = 1) -> None:
        """Do it."""
        heard.append((place, outer, count))

    @app.command()
    @grouped
    def less(inner: Annotated[Inner, But("colour")]) -> None:
        heard.append((inner,))

    return app


def test_groups_within_groups_are_filled(app: typer.Typer, heard: Calls) -> None:
    ended = CliRunner().invoke(app, ["command", "here", "--depth", "7", "-c", "blue", "--wide", "--count", "2"])
    assert ended.exit_code == 0, ended.output
    assert CliRunner().invoke(app, ["command", "here"]).exit_code == 0
    assert heard == [(Path("here"), Outer(Inner(7, "blue"), wide=True), 2), (Path("here"), Outer(Inner()), 1)]


def test_help_tells_of_the_fields(app: typer.Typer) -> None:
    said = CliRunner().invoke(app, ["command", "--help"], terminal_width=120).output
    for words in ("The inner ones", "How very deep.", "Which colour.", "Elsewhere", "Do it.", "[default: 3]"):
        assert words in said


def test_what_a_command_leaves_out_keeps_its_default(app: typer.Typer, heard: Calls) -> None:
    assert CliRunner().invoke(app, ["less", "--depth", "1"]).exit_code == 0
    assert CliRunner().invoke(app, ["less", "--colour", "blue"]).exit_code == 2
    assert CliRunner().invoke(app, ["less", "--depth", "-1"]).exit_code == 2
    assert heard == [(Inner(1, "red"),)]


def test_only_what_was_given_becomes_a_setting() -> None:
    assert given_values(LookOptions(), ReadOptions(), SettingsOptions()) == {}
    given = (LookOptions(budget="10%"), ReadOptions(stride=2), SettingsOptions(clip_model="tiny"))
    values = {"selection.budget": "10%", "keyframes.embeddings": "clip", "clip.model": "tiny"}
    assert given_values(*given) == values
    assert SettingsOptions(overrides=["selection.budget=5"]).load(given[0]).selection.budget == "10%"


def test_a_group_refuses_what_cannot_stand_together() -> None:
    with pytest.raises(InvalidSetting, match="--region-at without --region"):
        LookOptions(region_at=1.0)
