"""The results page: its commands exist, and documents hold what the kept figures give."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from arr_stream.cli import app as product
from arr_stream.config import Settings
from benchmarks.__main__ import app as measurements
from benchmarks.results.page import documents, filled, page
from benchmarks.results.records import Record, load_records
from benchmarks.results.sections import BY_NAME, SECTIONS
from benchmarks.results.targets import TARGETS, Target

ROOT = Path(__file__).resolve().parent.parent


PROGRAMS = {"arr-stream": product, "benchmarks": measurements}
LINES = sorted({line for each in SECTIONS for one in each.commands for line in (one.line, one.quick) if line})


def _begins(line: str) -> bool:
    return line.split()[0] in PROGRAMS


@pytest.mark.parametrize("line", [line for line in LINES if _begins(line)])
def test_every_command_parses(line: str) -> None:
    """Down to the command that it names, whose options are all known and of the right kind."""
    program, *words = shlex.split(line)
    command = get_command(PROGRAMS[program])
    while isinstance(command, TyperGroup):
        _, command, words = command.resolve_command(None, words)
    assert command.make_context(line, words).params["as_json"] is True


@pytest.mark.parametrize("line", [line for line in LINES if "--set " in line or "--way " in line])
def test_every_setting_that_a_command_names_exists(line: str) -> None:
    words = shlex.split(line)
    given = " ".join(value for option, value in pairwise(words) if option in ("--set", "--way"))
    Settings.load(None, [word for word in given.split() if "=" in word])


SCRIPTS = sorted({line.split()[0] for line in LINES if not _begins(line)})


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_is_there_and_knows_its_options(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without running it: its program's help names every option of its lines."""
    module = re.search(r"-m (\w+)", (ROOT / script).read_text())
    assert module is not None and os.access(ROOT / script, os.X_OK)
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit):
        importlib.import_module(f"{module[1]}.__main__").main()
    help_text = capsys.readouterr().out
    words = {word for line in LINES if line.startswith(f"{script} ") for word in line.split()}
    assert all(word in help_text for word in words if word.startswith("--"))


def _anchors(text: str) -> set[str]:
    """Of headings as GitHub makes them, and of marks."""
    plain = [re.sub(r"[`*]", "", line.lstrip("#").strip()) for line in text.splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in plain} | set(
        re.findall(r'<a id="([^"]+)">', text)
    )


@pytest.mark.parametrize("document", documents(ROOT), ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), f"{document.name}: {target}"
        if anchor:
            assert anchor in _anchors(path.read_text(encoding="utf-8")), f"{document.name}: {target}"


@pytest.fixture(scope="module")
def kept() -> Mapping[str, Record]:
    return load_records(ROOT / "docs" / "results")


def test_the_page_is_what_the_kept_figures_give(kept: Mapping[str, Record]) -> None:
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == page(kept)
    assert not any(each.quick for each in kept.values())
    assert set(kept) <= set(BY_NAME)


@pytest.mark.parametrize("document", documents(ROOT), ids=lambda path: path.name)
def test_blocks_hold_what_the_kept_figures_give(document: Path, kept: Mapping[str, Record]) -> None:
    text = document.read_text(encoding="utf-8")
    link = "docs/results.md" if document.parent == ROOT else "results.md"
    assert filled(text, kept, link) == text


def test_kept_figures_that_are_promised_are_found(kept: Mapping[str, Record]) -> None:
    """A heading that a command has changed shows here, and not as "not measured" on the page."""
    promised: Sequence[Target] = [each for each in TARGETS if each.section in kept and kept[each.section].runs]
    assert [each.what for each in promised if each.value(kept[each.section]) is None] == []
