"""The results page: what is run, what is kept, and that documents hold what it says."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from arr_stream.cli import app as product
from arr_stream.config import Settings
from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.tables import ResultTable
from benchmarks.__main__ import app as measurements
from benchmarks.live.figures import Figure, LiveReport
from benchmarks.results import measuring
from benchmarks.results.command import measure_all
from benchmarks.results.measuring import Place, lacking, measure
from benchmarks.results.page import documents, filled, page
from benchmarks.results.records import Record, Run, load_records
from benchmarks.results.sections import BY_NAME, SECTIONS, Command, Section
from benchmarks.results.targets import TARGETS, Target, targets_table
from tests.conftest import Run as Call

ROOT = Path(__file__).resolve().parent.parent
TABLE = ResultTable("Speed", ("what", "ms"), (("ours", 1.25),), digits=2)
MACHINE = {"processor": "P", "cores": "2"}
ONE = Section(
    "one", "The first", "Shows one thing.", (Command("arr-stream print a", "arr-stream print quick"),), page="design.md"
)
TWO = Section(
    "two", "The second", "Shows another.", (Command("arr-stream print b --plot PICTURE"), Command("benchmarks print c"))
)

STAND_IN = """
import json, sys
from pathlib import Path
words = sys.argv[1:]
if words[0] == "fail":
    sys.exit("Traceback\\n" + words[1] + ": there is no such thing")
if words[0] == "talk":
    sys.exit(print("no JSON"))
if "--plot" in words:
    Path(words[words.index("--plot") + 1]).write_bytes(b"picture")
table = {"title": "T", "columns": ["what"], "rows": [[word] for word in words], "note": "", "digits": 2}
print(json.dumps({"tables": [table], "long": [0] * 9}))
"""
"""Stands for the programs: prints what it was given."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    program = tmp_path / "program.py"
    program.write_text(STAND_IN)
    data = tmp_path / "footage"
    (data / "flow").mkdir(parents=True)
    stand_in = (sys.executable, str(program))
    return Place(tmp_path, tmp_path / "out", data, {"arr-stream": stand_in, "benchmarks": stand_in})


def record(section: str, result: Any, **values: Any) -> Record:
    run = Run("", "arr-stream bench", 2.0, 0.5, result)
    return Record(section, "2026-01-02 03:04", "0123abcd", "c0de", MACHINE, False, **({"runs": (run,)} | values))


def printed(*tables: ResultTable) -> dict[str, Any]:
    return {"tables": [table.as_json() for table in tables]}


def measured(section: Section, place: Place, *, quick: bool = False) -> tuple[Record, list[str]]:
    said: list[str] = []
    return measure(section, place, quick=quick, say=said.append), said


class TestMeasuring:
    def test_what_commands_print_is_kept_with_what_it_depends_on(self, place: Place) -> None:
        found, said = measured(TWO, place)
        assert [run.command for run in found.runs] == [
            "arr-stream print b --plot PICTURE.png",
            "python -m benchmarks print c",
        ]
        assert found.pictures == ("two-1.png",) and (place.pictures / "two-1.png").is_file()
        assert found.machine["Python"] and found.machine["torch"] and not found.missing
        assert said == ["  arr-stream print b --plot PICTURE", "  benchmarks print c"]
        found.save(place.records)
        assert load_records(place.records) == {"two": found}

    def test_paths_of_the_machine_are_not_kept(self, place: Place) -> None:
        found, _ = measured(
            Section("flow", "Flow", "", (Command("arr-stream print DATA/flow PICTURE"),), ("flow",)), place
        )
        rows = found.runs[0].result["tables"][0]["rows"]
        assert rows == [["print"], ["DATA/flow"], ["./out/images/results/flow.png"]]
        assert str(place.root) not in json.dumps(dataclasses.asdict(found))

    @pytest.mark.parametrize(
        ("line", "reason"),
        [("fail this", "ended with code 1: this: there is no such thing"), ("talk", "printed no JSON")],
    )
    def test_a_failed_command_leaves_a_reason_and_nothing_of_before(self, place: Place, line: str, reason: str) -> None:
        good = dataclasses.replace(TWO, commands=TWO.commands[:1])
        measure_all([good], place, quick=False, resume=False)
        assert list(place.pictures.iterdir())
        bad = dataclasses.replace(good, commands=(Command(f"arr-stream {line}"),))
        assert measure_all([bad], place, quick=False, resume=False) == ["two"]
        assert reason in load_records(place.records)["two"].missing
        assert not list(place.pictures.iterdir()) and reason in page(load_records(place.records), [bad])

    def test_a_command_that_fails_leaves_the_figures_of_those_before(self, place: Place) -> None:
        section = dataclasses.replace(TWO, commands=(TWO.commands[0], Command("arr-stream fail this"), TWO.commands[1]))
        assert measure_all([section], place, quick=False, resume=False) == ["two"]
        found = load_records(place.records)["two"]
        assert [run.command for run in found.runs] == ["arr-stream print b --plot PICTURE.png"]
        assert "there is no such thing" in found.missing and (place.pictures / "two-1.png").is_file()
        text = page({"two": found}, [section])
        assert "| --plot |" in text and "(images/results/two-1.png)" in text and f"{found.measured}, incomplete" in text
        assert "*Incomplete: the command ended with code 1: this: there is no such thing.*" in text

    def test_what_is_lacking_is_told(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        assert lacking(("flow",), place.data) == ""
        assert "no folder davis/" in lacking(("flow", "davis"), place.data)
        assert "no footage was given" in lacking(("flow",), None)
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        assert "no NVIDIA GPU" in lacking(("cuda",), place.data)
        monkeypatch.setenv("ARR_STREAM_CHROMIUM", "no-such-browser")
        assert "no Chromium" in lacking(("chromium",), place.data)
        found, _ = measured(dataclasses.replace(ONE, needs=("davis",)), place)
        assert found.missing and not found.runs

    @pytest.mark.parametrize("resume", [False, True])
    def test_what_cannot_be_measured_here_is_kept_as_it_was(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], resume: bool
    ) -> None:
        drawing = dataclasses.replace(TWO, commands=TWO.commands[:1])
        measure_all([drawing], place, quick=False, resume=False)
        before, written = load_records(place.records), page(load_records(place.records), [drawing])
        monkeypatch.setattr(measuring, "code_digest", lambda root: "another")
        needy = dataclasses.replace(drawing, needs=("davis",))
        for quick in (False, True):
            assert measure_all([needy], place, quick=quick, resume=resume) == []
        assert load_records(place.records) == before and page(before, [needy]) == written
        assert (place.pictures / before["two"].pictures[0]).is_file()
        told = capsys.readouterr().out
        assert f"kept as of {before['two'].measured}, commit {before['two'].commit}" in told and "davis/" in told

    def test_resuming_measures_what_is_not_there(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        measure_all([ONE], place, quick=False, resume=True)
        capsys.readouterr()
        measure_all([ONE, TWO], place, quick=False, resume=True)
        told = capsys.readouterr().out
        assert "print a" not in told and "print c" in told
        monkeypatch.setattr(measuring, "code_digest", lambda root: "another")
        measure_all([ONE], place, quick=False, resume=True)
        assert "print a" in capsys.readouterr().out

    def test_a_damaged_record_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "one.json").write_text('{"section": "one"}')
        with pytest.raises(EvaluationDataError, match=r"one\.json: not a record .* delete it"):
            load_records(tmp_path)


class TestPage:
    def test_the_same_records_give_the_same_page(self, place: Place) -> None:
        records = {name: record(name, printed(TABLE)) for name in ("two", "one")}
        first = page(records, [ONE, TWO])
        assert first == page(dict(reversed(records.items())), [ONE, TWO])
        assert first.index("## The first") < first.index("## The second")

    def test_a_section_has_its_words_commands_tables_and_pictures(self) -> None:
        text = page({"one": record("one", printed(TABLE), pictures=("one.png",))}, [ONE])
        for words in ("Shows one thing.", "    arr-stream bench\n", TABLE.markdown(), "(images/results/one.png)"):
            assert words in text
        assert "| [The first](#one) | 2026-01-02 03:04 | `0123abcd` | A | 2 s | 0.5 |" in text
        assert "| processor | P |" in text

    def test_what_was_not_measured_says_so(self) -> None:
        text = page({"one": record("one", None, runs=(), missing="no footage was given")}, [ONE, TWO])
        assert "*Not measured: no footage was given.*" in text and "*Not measured yet.*" in text
        assert text.count("| not measured | – | – | – | – |") == 2


class TestTargets:
    def test_limits_of_live_parts_are_the_commands_own(self) -> None:
        figures = (Figure("page", "age, median", 70.0, "ms", 60.0), Figure("rate", "frames", 30.0, "a second"))
        rows = targets_table({"live": record("live", LiveReport({}, figures).as_json())}).rows
        assert rows[-1] == ("[Live: age, median](#live)", "at most 60 ms", "70 ms", "**missed**")


class TestBlocks:
    TEXT = "before\n<!-- results: NAME -->\nold\n<!-- /results -->\nafter\n"

    def test_only_what_stands_between_the_marks_changes(self) -> None:
        found = filled(self.TEXT.replace("NAME", "carry"), {"carry": record("carry", printed(TABLE))}, "results.md")
        assert found == f"before\n<!-- results: carry -->\n{TABLE.markdown()}\n<!-- /results -->\nafter\n"
        assert filled(found, {"carry": record("carry", printed(TABLE))}, "results.md") == found

    def test_an_unknown_block_is_an_error(self) -> None:
        with pytest.raises(KeyError, match="nonsense"):
            filled(self.TEXT.replace("NAME", "nonsense"), {}, "results.md")


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


def test_sections_are_named_once() -> None:
    assert len(BY_NAME) == len(SECTIONS)
    assert all(re.fullmatch(r"[a-z]+", section.name) for section in SECTIONS)
    assert all((ROOT / "docs" / section.page.partition("#")[0]).is_file() for section in SECTIONS if section.page)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--only", "nonsense"], 51),
        (["--data", "FOLDER/typo"], 80),
        (["--out", "FOLDER/file"], 21),
        (["--out", "FOLDER/file/below"], 21),
        (["--out", "FOLDER/taken"], 21),
        (["--out", "FOLDER/damaged", "--page"], 80),
    ],
)
def test_what_cannot_be_is_one_line(measure: Call, tmp_path: Path, options: list[str], code: int) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "results.md").mkdir(parents=True)
    (tmp_path / "damaged" / "results").mkdir(parents=True)
    (tmp_path / "damaged" / "results" / "one.json").write_text("{}")
    # One that needs footage: should a check be missing, it ends soon all the same.
    given = [option.replace("FOLDER", str(tmp_path)) for option in options]
    found, told, error = measure("results", "--only", "carry", *given)
    assert found == code and error.count("\n") == 1 and error.startswith("arr-stream: ") and not told


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
