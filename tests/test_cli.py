"""The command line as users meet it: outputs, exit codes, one line for every error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from typer.main import get_command

import arr_stream
from arr_stream.cli import COMMANDS, app, doctor
from arr_stream.records.json_lines import read_records
from tests.conftest import Refused, Run, Start
from tests.fault_helpers import no_room_to_speak
from tests.live_servers import wait_for
from tests.media import write_images, write_video
from tests.scenes import moving_square

FAST = ["--set", "keyframes.text=none", "--budget", "12"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write_video(path, [frame.rgb for frame in moving_square(20)], audio=True)
    return path


def _frame_count(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_everything_at_once(run: Run, clip: Path, tmp_path: Path) -> None:
    video, records, report = tmp_path / "out.mp4", tmp_path / "out.jsonl", tmp_path / "report"
    code, out, err = run(
        "process", clip, "--query", "red", "-o", video, "--patches", records, "--report", report, *FAST
    )
    assert code == 0, err
    assert out == ""
    assert "20 frames" in err
    assert "amortised" in err
    with av.open(str(video)) as container:
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p"
        assert not container.streams.audio
    assert _frame_count(video) == 20
    header, frames, end = read_records(records)
    assert (header.budget_tokens, header.grid_hw, header.query) == (12, (6, 8), ["red"])
    assert [frame.index for frame in frames] == list(range(20))
    assert all(len(frame.cells) == 12 for frame in frames)
    assert end is not None
    assert end.reason == "finished"
    summary = json.loads((report / "summary.json").read_text())
    assert summary["frames"] == 20
    assert {path.name for path in report.iterdir()} == {"contact_sheet.png", "latency.png", "summary.json"}


def test_records_alone_from_a_folder_and_not_a_word(run: Run, tmp_path: Path) -> None:
    write_images(tmp_path / "pictures", [frame.rgb for frame in moving_square(5)])
    records = tmp_path / "out.jsonl"
    code, out, err = run(
        "process", tmp_path / "pictures", "--region", "40,60,48,48", "--patches", records, "--log=quiet", *FAST
    )
    assert (code, out, err) == (0, "", "")
    assert len(read_records(records)[1]) == 5


@pytest.mark.parametrize("view", ["relevance", "clusters", "flow", "text", "channel:motion"])
def test_views_and_words_that_are_not_known(run: Run, clip: Path, tmp_path: Path, view: str) -> None:
    asked = ("--set", f"video.view={view}", "--max-frames", 3, "--query", "red fence")
    code, _, err = run("process", clip, "-o", tmp_path / "v.mp4", *asked, *FAST)
    assert code == 0, err
    assert _frame_count(tmp_path / "v.mp4") == 3
    assert "'fence'" in err and "plain_words" in err


def test_a_preset_and_what_overrides_it(run: Run, clip: Path, tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text('[keyframes]\ninterval = 4\ntext = "none"\n[selection]\nbudget = 9\n')
    records = tmp_path / "r.jsonl"
    code, _, err = run(
        "process", clip, "--preset", preset, "--set", "selection.budget=7", "--patches", records, "--log=quiet"
    )
    assert code == 0, err
    header, frames, _ = read_records(records)
    assert header.budget_tokens == 7
    assert [frame.index for frame in frames if frame.keyframe][:2] == [0, 4]


def test_existing_files_are_kept_without_force(run: Run, refused: Refused, clip: Path, tmp_path: Path) -> None:
    video = tmp_path / "out.mp4"
    video.write_bytes(b"precious")
    refused(20, "exists already", "process", clip, "-o", video, *FAST)
    assert video.read_bytes() == b"precious"
    assert run("process", clip, "-o", video, "--force", "--max-frames", 2, *FAST)[0] == 0
    assert _frame_count(video) == 2
    (tmp_path / "summary.json").write_text("precious")
    refused(20, "summary.json: exists already", "process", clip, "--report", tmp_path, *FAST)


def test_the_source_is_never_overwritten(refused: Refused, clip: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.mp4"
    source.write_bytes(clip.read_bytes())
    for option in ("-o", "--patches"):
        refused(21, "is the source itself", "process", source, option, source, "--force", *FAST)
    assert source.read_bytes() == clip.read_bytes()


def test_damage_in_mid_file_keeps_what_came_before(run: Run, clip: Path, tmp_path: Path) -> None:
    frames = [np.random.default_rng(i).integers(0, 255, (96, 128, 3), np.uint8) for i in range(30)]
    whole = tmp_path / "whole.mp4"
    write_video(whole, frames, container_options={"movflags": "faststart"})
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * 0.6)])
    video, records = tmp_path / "out.mp4", tmp_path / "out.jsonl"
    code, _, err = run("process", cut, "-o", video, "--patches", records, "--set", "keyframes.text=none")
    assert code == 15, err
    count = _frame_count(video)
    assert 5 < count < 30
    assert str(count) in err.splitlines()[-1]
    end = read_records(records)[2]
    assert end is not None
    assert (end.frames, end.reason) == (count, "damaged")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_said(refused: Refused, clip: Path, tmp_path: Path) -> None:
    link = tmp_path / "out.jsonl"
    link.symlink_to("/dev/full")
    refused(22, "out.jsonl", "process", clip, "--patches", link, "--force", "--log=quiet", *FAST)


@pytest.mark.parametrize("arguments", [("channels", "--json"), ("settings",), ("--version",), ("--help",)])
def test_results_that_find_no_room_are_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    with no_room_to_speak():
        code, _, err = run(*arguments)
    assert code == 22 and err.count("\n") == 1 and err.startswith("arr-stream: standard output: no space left")


@pytest.mark.parametrize("command", [("bench", "clip.mp4"), ("tune", "folder"), ("answers",)])
def test_a_loop_on_a_device_is_refused_where_it_would_not_run(run: Run, measure: Run, command: tuple[str, ...]) -> None:
    call = run if command[0] in ("bench", "tune") else measure
    code, out, err = call(*command, "--set", "loop.device=cuda")
    assert code == 51 and err.count("\n") == 1 and "runs the frame loop on the CPU" in err and not out


def test_warnings_are_printed_with_quiet_and_notices_are_not(run: Run, clip: Path) -> None:
    late = ("--region", "1,1,20,20@0.3")
    code, out, err = run("process", clip, *late, *FAST[:2], "--budget", 100, "--max-frames", 2, "--log=quiet")
    (line,) = err.splitlines()
    assert (code, out) == (0, "") and "was never used: no frame at or after 0.3 s was read" in line


def test_a_quiet_batch_warns_of_damage(run: Run, tmp_path: Path) -> None:
    frames = [np.random.default_rng(i).integers(0, 255, (96, 128, 3), np.uint8) for i in range(20)]
    write_video(tmp_path / "cut.mp4", frames, container_options={"movflags": "faststart"})
    whole = (tmp_path / "cut.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: int(len(whole) * 0.6)])
    code, out, err = run("batch", tmp_path / "cut.mp4", "-o", tmp_path / "out", *FAST, "--log=quiet")
    line, last = err.splitlines()
    assert code == 15 and "1 of 1 file is damaged" in last
    assert not out and line.startswith("warning: cut: damaged: ")


def test_records_on_standard_output_are_alone_there(
    start: Start, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    asking = start("ask", clip, "what is red?", "--model", "tiny", "--patches", "-", *FAST)
    out, err = asking.communicate()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["type"] for line in lines] == ["header", *["frame"] * 20, "answer", "end"]
    assert asking.returncode == 0 and lines[-2]["text"] in err, "the answer's text gives way"
    assert "20 frames" in err and "wrote -" in err
    assert not list(tmp_path.iterdir())


def test_a_budget_beyond_the_grid_is_all_of_it(run: Run, clip: Path, tmp_path: Path) -> None:
    code, _, err = run("process", clip, "--budget", 100, *FAST[:2], "--patches", tmp_path / "all.jsonl")
    assert code == 0, err
    header, frames, _ = read_records(tmp_path / "all.jsonl")
    assert header.budget_tokens == 48 and all(len(frame.cells) == 48 for frame in frames)
    code, _, err = run("batch", clip, "-o", tmp_path / "batch", "--budget", 100, *FAST[:2])
    assert code == 0, err
    _, frames, _ = read_records(next((tmp_path / "batch").rglob("records.jsonl")))
    assert all(len(frame.cells) == 48 for frame in frames)


def test_channels_and_settings_and_version(run: Run) -> None:
    code, out, _ = run("channels", "--json")
    assert code == 0
    assert len(json.loads(out)) == 40
    assert "keyframes.interval" in run("settings")[1]
    assert run("--version")[1].startswith("arr-stream 0.")


def test_doctor_finds_the_defaults_working(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Others take long to load; the next test has them all.
    defaults = {part: (setting, names[:2]) for part, (setting, names) in doctor.PARTS.items()}
    monkeypatch.setattr(doctor, "PARTS", defaults | {"embedding": ("keyframes.embeddings", ("appearance",))})
    monkeypatch.setattr(doctor, "_try_qwen", lambda: "not tried")
    code, out, _ = run("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(out)}
    assert code == 0, [f for f in findings.values() if not f["works"]]
    assert findings["text rapidocr"]["works"]
    assert findings["opencv"]["detail"].startswith("opencv-python-headless ")


@pytest.mark.slow
def test_doctor_tries_every_backend(run: Run) -> None:
    code, out, _ = run("doctor", "--json")
    assert code == 0, [finding for finding in json.loads(out) if not finding["works"]]


@pytest.mark.slow
def test_bench_reports_ratios(run: Run, clip: Path) -> None:
    code, out, err = run("bench", clip, "--frames", 8, "--repeats", 1, "--json", "--set", "keyframes.text=none")
    assert code == 0, err
    report = json.loads(out)
    assert report["frames"] == 8
    counts = {kind: timing["count"] for kind, timing in report["stages"]["keyframe"].items()}
    assert counts == {"between": 6, "keyframe": 1}, "the first keyframe's parts arrive after the warm-up"
    assert set(report["baselines"]) >= {"decode and encode", "process"}
    assert all(value > 0 for value in report["ratios"].values())


def test_start_measures_the_whole_command(measure: Run, clip: Path) -> None:
    code, out, err = measure("start", clip, "--repeats", 1, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert 0.1 < report["seconds"] < 60 and report["memory_mb"] > 20


def test_eval_on_a_folder_of_footage(run: Run, measure: Run, tmp_path: Path) -> None:
    from PIL import Image

    frames = moving_square(12)
    for index, frame in enumerate(frames):
        mask = (np.abs(frame.rgb.astype(int) - np.array((220, 30, 30))).max(axis=2) < 40).astype(np.uint8) * 255
        for kind, picture, suffix in (("frames", frame.rgb, "jpg"), ("masks", mask, "png")):
            folder = tmp_path / kind / "square"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(folder / f"{index:05d}.{suffix}")
    code, out, err = run("eval", "coverage", tmp_path, "--budget", 9, "--json")
    assert code == 0, err
    means = json.loads(out)["mean_coverage"]["9"]
    assert means["oracle"] >= means["arr-stream"] > 0.8
    code, out, err = run("eval", "coverage", tmp_path, "--budget", "20%", "--json", *FAST[:2])
    assert code == 0 and json.loads(out)["mean_coverage"]["20%"]["arr-stream"] > 0.8, err
    code, out, err = measure("carry", tmp_path, "--interval", 6, "--json")
    assert code == 0, err
    by_tracker = {row["tracker"]: row["iou"] for row in json.loads(out)["rows"]}
    assert by_tracker["arr-stream, mask"] > by_tracker["not moved"]
    assert measure("carry", tmp_path / "frames")[0] == 80


@pytest.mark.parametrize("realtime", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ctrl_c_ends_soon_with_a_playable_file_and_an_end_record(start: Start, tmp_path: Path, realtime: bool) -> None:
    long = tmp_path / "long.mp4"
    write_video(long, [frame.rgb for frame in moving_square(30, step_xy=(2, 0))] * 40)
    video, records = tmp_path / "out.mp4", tmp_path / "out.jsonl"
    command = ["stream", long, "--headless"] if realtime else ["process", long]
    process = start(*command, "-o", video, "--patches", records, "--set", "keyframes.text=none")
    wait_for(lambda: records.exists() and records.read_text().count("\n") > 12, "records", seconds=90)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "arr-stream: interrupted"
    end = read_records(records)[2]
    assert end is not None
    assert end.reason == "interrupted"
    assert _frame_count(video) == end.frames


def test_help_loads_no_heavy_package() -> None:
    code = (
        "import sys\nfrom arr_stream.cli import main\n"
        "for command in ([], ['process'], ['ask'], ['batch'], ['serve'], ['stream'], ['models']):\n"
        "    sys.argv = ['arr-stream', *command, '--help']\n"
        "    try: main()\n    except SystemExit as ended: assert not ended.code, command\n"
        "    heavy = {'torch','cv2','av','skimage','matplotlib','rapidocr','numpy','PIL'} & set(sys.modules)\n"
        "    assert not heavy, f'{command} loaded {heavy}'"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys\nfrom arr_stream.cli import main\nsys.argv = ['arr-stream', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "ours = [name for name in sys.modules if name.startswith(('arr_stream', 'pydantic'))]\n"
        "print(*sorted(ours), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    needed = ["arr_stream", "arr_stream.cli", "arr_stream.cli.console", "arr_stream.errors", "arr_stream.extras"]
    assert result.stderr.split() == needed


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_help_of_each_begins_with(name: str) -> None:
    _, command, _ = get_command(app).resolve_command(None, [name])  # type: ignore[attr-defined]
    assert command.help.split("\n\n")[0] == COMMANDS[name][1]


def test_importing_the_package_loads_neither_torch_nor_opencv() -> None:
    code = "import sys, arr_stream; sys.exit(bool({'torch', 'cv2', 'av'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _loaded_of(names: str, *arguments: str) -> str:
    """Those of some modules that a command line has imported at its end, in one line."""
    code = (
        "import sys\nfrom arr_stream.cli import main\n"
        "try: main()\nexcept SystemExit as ended: assert not ended.code\n"
        f"print(*sorted(set({names.split()!r}) & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a_run_with_the_defaults_loads_no_torch(clip: Path, tmp_path: Path) -> None:
    heavy = "torch kornia matplotlib transformers fastapi openai rapidocr skimage ssl"
    outputs = ["-o", str(tmp_path / "shown.mp4"), "--patches", str(tmp_path / "patches.jsonl")]
    assert _loaded_of(heavy, "process", str(clip), "-q", "red", "--max-frames", "2", *outputs) == ""


def test_a_run_that_writes_nothing_loads_nothing_that_writes(clip: Path) -> None:
    writing = "arr_stream.outputs arr_stream.draw arr_stream.records arr_stream.vlm PIL ssl asyncio"
    assert _loaded_of(writing, "process", str(clip), "-q", "red", "--max-frames", "2") == ""


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("fence", "unknown word 'fence'; nothing to search for"),
        ("magenta", "magenta: not found; its relevance was never above 0.0"),
        ("blue", ""),
    ],
)
def test_a_query_that_leads_nothing_says_so_even_when_quiet(run: Run, tmp_path: Path, query: str, said: str) -> None:
    clip = write_video(tmp_path / "clip.mp4", [_blue_square(index) for index in range(4)])
    arguments = ["--query", query, "--patches", tmp_path / "records.jsonl", "--log=quiet", *FAST]
    code, _, err = run("process", clip, *arguments)
    assert code == 0 and (said in err if said else not err)


def _blue_square(index: int) -> np.ndarray:
    picture = np.full((120, 160, 3), 90, np.uint8)
    picture[40:80, 10 + 8 * index : 50 + 8 * index] = (20, 30, 220)
    return picture


def test_open_warns_of_words_that_are_not_understood(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", [_blue_square(index) for index in range(2)])
    with pytest.warns(UserWarning, match="unknown word 'fence'"):
        arr_stream.open(clip, query="fence").close()
