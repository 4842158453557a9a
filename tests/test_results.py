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
from arr_stream.evaluation.coverage import METHODS, CoverageReport, CoverageRow
from arr_stream.evaluation.tables import ResultTable
from benchmarks.__main__ import app as measurements
from benchmarks.flow import FlowReport, FlowRow
from benchmarks.live.figures import Figure, LiveReport
from benchmarks.localisation import LocalisationReport, LocalisationRow
from benchmarks.results import measuring
from benchmarks.results.command import measure_all, write
from benchmarks.results.measuring import Place, lacking, measure
from benchmarks.results.page import documents, filled, page
from benchmarks.results.records import Record, Run, load_records
from benchmarks.results.sections import BY_NAME, SECTIONS, Command, Section
from benchmarks.results.tables import MAKERS, tables_of
from benchmarks.results.targets import TARGETS, Target, targets_table
from benchmarks.text import TextScore
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


def shown(section: str, result: Any, label: str = "") -> tuple[tuple[Any, ...], ...]:
    """Rows of the first table."""
    run = Run(label, "arr-stream", 1.0, 0.0, json.loads(json.dumps(result)))
    return tables_of(record(section, None, runs=(run,)))[0].rows


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

    def test_a_script_of_the_project_that_writes_a_file(self, place: Place) -> None:
        script = place.root / "scripts" / "count"
        script.parent.mkdir()
        script.write_text('#!/bin/sh\necho "far too much"\necho "{\\"tables\\": [], \\"to\\": $1}" > "$3"\n')
        script.chmod(0o755)
        section = Section("three", "", "", (Command("scripts/count 7 --json FILE"),))
        found, said = measured(section, place)
        assert [run.result for run in found.runs] == [{"tables": [], "to": 7}]
        assert [run.command for run in found.runs] == ["scripts/count 7 --json FILE.json"]
        assert said == ["  scripts/count 7 --json FILE"]

    def test_paths_of_the_machine_are_not_kept(self, place: Place) -> None:
        found, _ = measured(
            Section("flow", "Flow", "", (Command("arr-stream print DATA/flow PICTURE"),), ("flow",)), place
        )
        rows = found.runs[0].result["tables"][0]["rows"]
        assert rows == [["print"], ["DATA/flow"], ["./out/images/results/flow.png"]]
        assert str(place.root) not in json.dumps(dataclasses.asdict(found))

    def test_short_commands_and_dropped_keys(self, place: Place) -> None:
        found, _ = measured(dataclasses.replace(ONE, drop=("long",)), place, quick=True)
        assert found.quick and found.runs[0].command == "arr-stream print quick"
        assert set(found.runs[0].result) == {"tables"}

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

    def test_short_runs_do_not_stand_in_for_what_cannot_be_measured(self, place: Place) -> None:
        measure_all([ONE], place, quick=True, resume=False)
        measure_all([dataclasses.replace(ONE, needs=("davis",))], place, quick=False, resume=False)
        assert "davis/" in load_records(place.records)["one"].missing

    def test_pictures_of_a_killed_run_are_cleared_away(self, place: Place) -> None:
        place.pictures.mkdir(parents=True)
        for name in ("two.partial.png", "two-1.partial.png", "twofold.png"):
            (place.pictures / name).touch()
        measured(TWO, place)
        assert sorted(path.name for path in place.pictures.iterdir()) == ["two-1.png", "twofold.png"]

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

    def test_one_section_anew_leaves_the_others(self, place: Place) -> None:
        measure_all([ONE, TWO], place, quick=False, resume=False)
        before = load_records(place.records)
        measure_all(
            [dataclasses.replace(ONE, commands=(Command("arr-stream print other"),))], place, quick=False, resume=False
        )
        after = load_records(place.records)
        assert after["two"] == before["two"] and after["one"] != before["one"]

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

    def test_short_runs_are_marked(self) -> None:
        assert "mean nothing" in page({"one": dataclasses.replace(record("one", printed(TABLE)), quick=True)}, [ONE])
        assert "mean nothing" not in page({"one": record("one", printed(TABLE))}, [ONE])

    def test_two_machines_are_told_apart(self) -> None:
        other = dataclasses.replace(record("two", printed(TABLE)), machine={"processor": "Q", "cores": "8"})
        text = page({"one": record("one", printed(TABLE)), "two": other}, [ONE, TWO])
        assert "on machine A" in text and "on machine B" in text and "| cores | 2 | 8 |" in text

    def test_a_page_elsewhere_leaves_the_documents_alone(self, place: Place) -> None:
        (place.root / "docs").mkdir()
        readme = place.root / "README.md"
        readme.write_text("<!-- results: main -->\nold\n<!-- /results -->\n")
        write(place)
        assert place.page.is_file() and "old" in readme.read_text()
        write(dataclasses.replace(place, out=place.root / "docs"))
        assert "old" not in readme.read_text() and "docs/results.md#stages" in readme.read_text()


class TestTargets:
    def test_both_directions(self) -> None:
        most = Target("w", "one", 1.0, lambda found: found.runs[0].result["value"], at_least=False, unit="ms")
        least = dataclasses.replace(most, at_least=True)
        for value, under, over in ((0.5, "reached", "**missed**"), (1.5, "**missed**", "reached")):
            found = record("one", {"value": value})
            assert most.row(found)[1:] == ("at most 1 ms", f"{value} ms", under)
            assert least.row(found)[1:] == ("at least 1 ms", f"{value} ms", over)
        for beyond, verdict in ((False, "reached"), (True, "**missed**")):
            both = [
                dataclasses.replace(each, beyond=beyond).row(record("one", {"value": 1.0})) for each in (most, least)
            ]
            assert [row[-1] for row in both] == [verdict] * 2
        more = dataclasses.replace(least, beyond=True).row(record("one", {"value": 1.01}))
        assert more[1:] == ("more than 1 ms", "1.01 ms", "reached")
        assert most.row(None)[-1] == most.row(record("one", {"value": None}))[-1] == "not measured"

    def test_claims_and_gains_are_found_where_they_are_printed(self) -> None:
        claims = [
            {"what": f"ViT-B-16:random, {size}: video, against {what}", "measured": value + more}
            for size, more in (("864x480", 0.0), ("1024x1024", 2.0))
            for what, value in (("a dense pass on every frame", 14.0), ("273 crops, the larger claim", 300.0))
        ]
        headings = ("part", "asked for by", "sequence", "before", "after", "gain")
        gains = (("held out", "nothing", "mean", 0.6, 0.64, 0.04), ("held out", "first box", "mean", 0.7, 0.71, 0.01))
        flow = FlowReport(
            tuple(
                FlowRow(name, pair, error, 1.0, 1.0)
                for name, errors in (
                    ("arr-stream, dis fast", (2.0, 2.0)),
                    ("DIS fast, full size", (4.0, 1.0)),
                    ("arr-stream, torch ultrafast", (9.0, 9.0)),
                    ("arr-stream, torch fast", (1.0, 1.5)),
                    ("arr-stream, torch medium", (0.1, 0.1)),
                )
                for pair, error in zip(("p", "q"), errors, strict=True)
            )
        )
        ahead = ResultTable(
            "Coverage asked with the first box: sequences with masks",
            ("budget", "method", "object", "ours +"),
            (
                ("10%", "arr-stream", 0.8, None),
                ("10%", "a", 0.6, 0.2),
                ("10%", "b", 0.75, 0.05),
                ("10%", "oracle", 0.9, None),
                ("25%", "a", 0.9, 0.1),
            ),
        )
        words = ResultTable(
            "Coverage of text: photographs with words",
            ("budget", "method", "text"),
            (
                ("10%", "arr-stream, no query", 0.7),
                ("10%", "arr-stream, text", 0.9),
                ("10%", "a", 0.8),
                ("10%", "oracle", 1.0),
            ),
        )
        carried = ResultTable(
            "Carried masks",
            ("tracker", "a mask every ... frames", "mean IoU", "times the flow"),
            (("arr-stream, mask", 10, 0.82, 2.3), ("arr-stream, mask", 30, 0.7, 2.4)),
        )
        names = "frame between keyframes / flow alone", "process / decode and encode", "full generation / amortised"
        runs = tuple(
            Run("", "arr-stream bench", 2.0, 0.5, {"ratios": dict.fromkeys(names, times), "start": start})
            for times, start in ((15.0, {"seconds": 1.6, "memory_mb": 300.0}), (1.5, {}))
        )
        device = (
            ResultTable("A frame between keyframes, 1024x1024", ("asked for", "ms"), (("red", 0.5), ("nothing", 0.9))),
            ResultTable(
                "All 40 channels, dense, 1024x1024", ("", "ms"), (("keyframe", 9.0), ("amortised over 30", 2.0))
            ),
        )
        records = {
            "compare": record("compare", printed(ahead, words)),
            "carry": record("carry", printed(carried)),
            "stages": record("stages", None, runs=runs),
            "device": record("device", printed(*device)),
            "claims": record("claims", {"claims": claims}),
            "tune": record("tune", printed(ResultTable("Coverage, before and after tuning", headings, gains))),
            "flow": record("flow", flow.as_json()),
        }
        verdicts = {str(row[0]): row[2:] for row in targets_table(records).rows}
        found = {words.partition("](")[0].lstrip("["): cells for words, cells in verdicts.items()}
        assert found["Coverage at 10% of the tokens, asked by a box: ahead of every other rule by"] == (
            "0.05",
            "**missed**",
        )
        assert found["Coverage at 25% of the tokens, asked by a box: ahead of every other rule by"] == (
            "0.1",
            "reached",
        )
        assert (
            found["Coverage at 10% of the tokens, without a query: ahead of every other rule by"][1] == "not measured"
        )
        text = "Text on photographs, 10% of the tokens, without a query: ahead of every other rule by"
        assert found[text] == ("-0.1", "**missed**")
        assert found["A mask carried over 10 frames, DAVIS (tuned on it): mean IoU"] == ("0.82", "reached")
        assert found["A mask carried over 30 frames, DAVIS (tuned on it): mean IoU"] == ("0.7", "**missed**")
        assert found["Its time, of that of bare optical flow"] == ("2.3 times", "**missed**")
        for words, size, cells in (
            ("`process` to a video, of decoding and encoding alone", "640x360, one query", ("15 times", "**missed**")),
            ("`process` to a video, of decoding and encoding alone", "1280x720", ("1.5 times", "reached")),
            ("Everything anew on every frame, of the amortised cost", "1280x720", ("1.5 times", "**missed**")),
        ):
            assert found[f"{words}, {size}"] == cells
        assert found["From the command to the first frame done"] == ("1.6 s", "**missed**")
        assert found["Memory of that"] == ("300 MB", "reached")
        assert found["On a GPU, a frame of 1024x1024 between keyframes, whatever is asked"] == ("0.9 ms", "**missed**")
        assert found["On a GPU, all 40 channels of 1024x1024, dense, amortised"] == ("2 ms", "reached")
        perception = {words: cells for words, cells in found.items() if words.startswith("All of perception on ")}
        assert perception == {
            "All of perception on 864x480, amortised, against a dense pass of CLIP on every frame": (
                "14 times",
                "**missed**",
            ),
            "All of perception on 1024x1024, amortised, against a dense pass of CLIP on every frame": (
                "16 times",
                "reached",
            ),
            "All of perception on 864x480, amortised, against encoding 273 crops": ("300 times", "reached"),
            "All of perception on 1024x1024, amortised, against encoding 273 crops": ("302 times", "reached"),
        }
        assert found["Coverage after tuning, on held-out sequences, without a query: gain"] == ("0.04", "reached")
        assert found["Coverage after tuning, on held-out sequences, asked by a box: gain"] == ("0.01", "**missed**")
        assert found[
            "Endpoint error of `torch fast` flow on its worst pair, as a share of that of the better DIS fast"
        ] == ("1.5", "**missed**")

    def test_limits_of_live_parts_are_the_commands_own(self) -> None:
        figures = (Figure("page", "age, median", 70.0, "ms", 60.0), Figure("rate", "frames", 30.0, "a second"))
        rows = targets_table({"live": record("live", LiveReport({}, figures).as_json())}).rows
        assert rows[-1] == ("[Live: age, median](#live)", "at most 60 ms", "70 ms", "**missed**")


class TestTables:
    """Each is made of what the reports themselves give."""

    def test_coverage(self) -> None:
        rows = [
            CoverageRow(method, sequence, budget, share, 0.5, float(budget))
            for method in METHODS
            for budget in (40, 101)
            for sequence, share in (("a", 0.2), ("b", 0.6))
        ]
        report = CoverageReport(tuple(rows)).as_json()
        assert shown("coverage", report) == tuple((method, 0.4, 0.4) for method in METHODS)
        assert shown("strategies", report, "tiers")[0] == ("`tiers`", 0.4, 0.5, 0.4, 0.5)

    def test_text(self) -> None:
        score = TextScore("photos", "auto", 10, 9, 60, 80, 100, 16, 21, 0, 0, 0, 46.2)
        blank = dataclasses.replace(score, folder="leaves", something_found=1, pixels_true=0, words_found=0, words=0)
        first, second = tables_of(record("text", json.loads(json.dumps([score.as_json(), blank.as_json()]))))
        assert first.rows == (("photos", "auto", "9/10", 0.6, 0.75, "16/21", None, None, 46),)
        assert second.rows == (("leaves", "auto", "1/10", 46.2),)

    def test_localisation(self) -> None:
        rows = (
            LocalisationRow("clip tiny value native", "colour and shape", 9, 0.9, 0.8, 0.7, 39.4),
            LocalisationRow("clip tiny value native", "shape alone", 9, 0.6, 0.5, 0.4, 39.4),
        )
        report = LocalisationReport(rows, 4).as_json()
        assert shown("localisation", report) == (("`value`", "`native`", 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 39),)

    def test_every_maker_belongs_to_a_section(self) -> None:
        assert set(MAKERS) <= set(BY_NAME)
        assert {target.section for target in TARGETS} <= set(BY_NAME)


class TestBlocks:
    TEXT = "before\n<!-- results: NAME -->\nold\n<!-- /results -->\nafter\n"

    def test_only_what_stands_between_the_marks_changes(self) -> None:
        found = filled(self.TEXT.replace("NAME", "claims"), {"claims": record("claims", printed(TABLE))}, "results.md")
        assert found == f"before\n<!-- results: claims -->\n{TABLE.markdown()}\n<!-- /results -->\nafter\n"
        assert filled(found, {"claims": record("claims", printed(TABLE))}, "results.md") == found

    def test_what_is_not_measured_has_no_figure(self) -> None:
        found = filled(self.TEXT.replace("NAME", "claims"), {}, "results.md")
        assert "Not measured ([results](results.md#claims))" in found and "old" not in found
        main_block = filled(self.TEXT.replace("NAME", "main"), {}, "docs/results.md")
        assert "docs/results.md#cameras" in main_block and not re.search(r"\d\.\d", main_block)

    def test_the_main_block_tells_ours_from_the_best_of_the_others(self) -> None:
        rows = (
            ("10%", "arr-stream, box", 0.8),
            ("10%", "arr-stream, no query, fitted on other sets", 0.75),
            ("10%", "a", 0.6),
            ("10%", "b", 0.7),
            ("10%", "oracle", 0.9),
            ("25%", "a", 0.9),
        )
        table = ResultTable("Coverage asked with the first box: single walkers", ("budget", "method", "object"), rows)
        found = filled(self.TEXT.replace("NAME", "main"), {"cameras": record("cameras", printed(table))}, "results.md")
        assert "| 0.80, against 0.70 by the best rule (b) |" in found

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
    found, told, error = measure("results", "--only", "flow", *given)
    assert found == code and error.count("\n") == 1 and error.startswith("arr-stream: ") and not told


def test_the_list_tells_each_section(measure: Call) -> None:
    code, told, _ = measure("results", "--list", "--only", "flow", "--only", "text")
    assert code == 0
    assert "benchmarks flow DATA/flow" in told and "benchmarks text DATA/text" in told and "benchmarks live" not in told


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
