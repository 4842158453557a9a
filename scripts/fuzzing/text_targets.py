"""Fuzzing of what is written down: records, presets, gaze, queries, rules, addresses, the journal of a batch."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fuzzing.mutate import PLAIN, TEXT, inserted, json_line, lines, numbers
from fuzzing.target import Run, Target

_LONGEST_NAME = 255
SPLIT = b"\x1e"
"""Between the parts of an input that has several."""


def _records() -> list[bytes]:
    header = {
        "type": "header",
        "version": 1,
        "source": "clip.mp4",
        "frame_size_wh": [64, 32],
        "fine_cell_px": [32.0, 32.0],
        "grid_hw": [1, 2],
        "query": {"texts": ["red"]},
        "budget_tokens": 2,
        "config": {"grid": {"max_pixels": 1024}},
    }
    frame = {
        "type": "frame",
        "index": 0,
        "pts_seconds": 0.0,
        "keyframe": True,
        "refresh_reason": "first",
        "keyframe_age": 0,
        "confidence": 1.0,
        "cells": [[0, 0, 32, 32, 0.5], [32, 0, 64, 32, 0.25]],
        "latency_ms": {"flow": 1.5},
        "reasons": [["information", None, "computed", "fresh", 0], ["motion", 0, "carried", "seen", 1]],
        "keyframe_index": 0,
        "parts": {"clusters": [0, "grid"], "text": None},
        "query_scores": [0.9],
        "cells_scored": 2,
        "notices": ["a word"],
        "model": {
            "sent": 2,
            "held": 0,
            "memory_tokens": 9,
            "cache_bytes": 9,
            "vision_ms": 1.0,
            "prefill_ms": 1.0,
            "rebuilt": None,
            "error": None,
            "frame_index": 0,
        },
    }
    answer = {
        "type": "answer",
        "frame_index": 0,
        "pts_seconds": 0.0,
        "question": "What?",
        "text": "A bus.",
        "model": "tiny",
        "cells": [[0, 0, 32, 32, 0.9, 0]],
        "visual_tokens": 2,
        "prompt_tokens": 1,
        "answer_tokens": 1,
        "prefill_ms": 1.0,
        "decode_ms": 1.0,
        "memory_tokens": 9,
        "cache_bytes": 9,
        "finish": "stop",
        "error": None,
    }
    end = {"type": "end", "frames": 2, "dropped": 0, "reason": "finished"}
    runs: list[list[dict[str, Any]]] = [
        [header, frame, answer, {**frame, "index": 1, "pts_seconds": 0.04}, end],
        [header, frame],
        [header, {**frame, "frame_size_wh": [32, 32], "grid_hw": [1, 1], "fine_cell_px": [32.0, 32.0]}, end],
        [{**header, "source": "rtsp://user:secret@host/x", "query": None}, end],
    ]
    return [b"".join(json.dumps(line).encode() + b"\n" for line in run) for run in runs] + [b"{}\n", b"\n"]


def _open_records(scratch: Path) -> Run:
    from arr_stream.records.json_lines import read_answers, read_records

    path = scratch / "records.jsonl"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        header, frames, end = read_records(path)
        answers = read_answers(path)
        for frame in frames:
            if not math.isfinite(frame.pts_seconds) or not 0 <= frame.confidence <= 1:
                raise AssertionError(f"frame {frame.index}: time {frame.pts_seconds}, confidence {frame.confidence}")
        return f"{min(len(frames), 5)} frames {min(len(answers), 3)} answers end {end is not None} {header.version}"

    return run


def _settings() -> list[bytes]:
    presets = (
        (
            b'[keyframes]\ninterval = 15\ntext = "none"\n[selection]\nbudget = "10%"\nlevels = false\n',
            b"",
            b"live.fps=30",
        ),
        (
            b'include = "other.toml"\n[vlm]\nmodel = "x"\n',
            b"[motion]\nflow = 'dis'\n",
            b"clip.model=tiny\nsam.model=vit_b",
        ),
        (b'include = ["other.toml", "other.toml"]\n', b"grid.max_pixels = 4096\n", b"selection.budget=10%"),
        (b"# nothing\n", b"include = 'preset.toml'\n", b"source.hardware=off\nrelevance.trust=0.25\nvideo.crf=20"),
        (b"[scoring]\nedges = 1\nmotion = 0.5e0\n", b"", b'keyframes.interval = 0x1F\nlive.size="640x480"'),
        (b"keyframes = {interval = 5}\nvlm.fps = 1.5\ndates = 2020-01-01T00:00:00Z\n", b"", b"x.y.z=1"),
    )
    return [SPLIT.join(parts) for parts in presets]


def _open_settings(scratch: Path) -> Run:
    from arr_stream.config import Settings

    folder = scratch / "presets"
    folder.mkdir(exist_ok=True)

    def run(data: bytes) -> str:
        preset, other, overrides, *_ = *data.split(SPLIT), b"", b""
        (folder / "preset.toml").write_bytes(preset)
        (folder / "other.toml").write_bytes(other)
        # Arguments of a command line cannot hold a zero byte.
        given = overrides.replace(b"\x00", b"").decode("utf-8", "surrogateescape").splitlines()
        settings = Settings.load(folder / "preset.toml", given)
        if Settings.checked(settings.model_dump(mode="json")) != settings:
            raise AssertionError("settings that do not survive being written down")
        return f"budget {settings.selection.budget[:8]} fps {settings.live.fps > 0}"

    return run


def _gaze() -> list[bytes]:
    rows = "".join(f"{i / 100:.3f},{i % 7 / 7:.4f},{i % 5 / 5:.4f}\n" for i in range(12))
    return [
        f"pts_seconds,x,y\n{rows}".encode(),
        f"\ufeffPTS_Seconds, X ,y\r\n{rows}".encode(),
        b'y,"note, with comma",x,pts_seconds\n0.5,"a ""b""",0.25,0\n1,,0,0.1\n\n',
        b"pts_seconds,x,y\n",
        b"pts_seconds;x;y\n0;0;0\n",
    ]


def _open_gaze(scratch: Path) -> Run:
    import numpy as np

    from arr_stream.relevance.gaze import load_gaze, splat

    path = scratch / "gaze.csv"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        track = load_gaze(path, max_samples=1000)
        points = track.between(-math.inf, math.inf)
        bump = splat(points[:4], (6, 8))
        if len(points) != len(track) or not np.isfinite(bump).all() or not 0 <= bump.min() <= bump.max() <= 1:
            raise AssertionError(f"{len(points)} of {len(track)} points, a map up to {bump.max()}")
        return f"{min(len(track), 12)} samples"

    return run


_QUERIES = (
    "t red car on the left",
    "t the word 'STOP' that moves",
    "t “Ausgang” or «sortie», yellow; no person's dog",
    "t large blue round thing at the top right, moving fast",
    "t 紅い车 ☕ straße İstanbul",
    "r 120,80,64,48",
    "r 0,0,1e3,.5",
    "b auto",
    "b 10%",
    "b 273",
    "b 0.5%",
    "r -0.5,-0.5,10,10",
)


def _open_queries(scratch: Path) -> Run:
    from arr_stream.relevance.query import parse_region, parse_text
    from arr_stream.selection.budget import budget_tokens, fitted_tokens

    def run(data: bytes) -> str:
        kind, text = data[:1], data[2:].decode("utf-8", "surrogateescape")
        if kind == b"r":
            region = parse_region(text).checked((640, 360))
            x, y, w, h = region.xywh
            if not (0 <= x < x + w <= 640 and 0 <= y < y + h <= 360):
                raise AssertionError(f"a region of {region.xywh}")
            return "region"
        if kind == b"b":
            if not 1 <= fitted_tokens(text, 220) <= 220 or not 1 <= budget_tokens(text, 220) <= 220:
                raise AssertionError(f"budget {text!r}")
            return "budget"
        query = parse_text(text)
        notice = query.notice() or ""
        if len(query.label) > 48 or "\n" in query.label or "\n" in notice:
            raise AssertionError(f"label {query.label!r}, notice {notice!r}")
        return f"text {min(len(query.terms), 5)} terms {min(len(query.unknown_words), 5)} unknown"

    return run


_RULES = (
    "relevance > 0.6 for 2s",
    "relevance[1] >= .5 and motion > 0.1",
    "(cut = 1 or keyframe == 1) and tokens < 100 for 500ms",
    'answer contains "a \\"dog\\""',
    "answer matches /dogs?|cats/i or confidence <= 0.3",
    "latency_ms > 33 for 1min",
    "((covered != 0.5))",
    "answer matches /(?P<a>x)(?P=a)|\\d{2,3}\\/[^a-z]/",
)


def _open_rules(scratch: Path) -> Run:
    import numpy as np

    from arr_stream.live.actions import PostJson, RunCommand
    from arr_stream.live.rules import RuleWatch, parse_rule

    moving = SimpleNamespace(plane=lambda name: np.zeros((4, 4), np.float32))

    def run(data: bytes) -> str:
        text = data.decode("utf-8", "surrogateescape")
        if text.startswith("!"):
            RunCommand.parse(text[1:]).close()
            return "command"
        if text.startswith("@"):
            PostJson(text[1:]).close()
            return "address"
        rule = parse_rule(text)
        watch, fired = RuleWatch(rule), 0
        for index in range(4):
            answer = SimpleNamespace(finish="stop", text="a dog\x1b[31m\n12/3")
            patches: Any = SimpleNamespace(
                query_scores=(0.7, 0.2),
                pts_seconds=index * 0.7,
                answers=(answer,),
                texture=moving,
                confidence=0.4,
                refresh_reason="cut",
                keyframe=index == 0,
                latency_ms={"flow": 40.0},
                rows=np.array([0, 1]),
                columns=np.array([0, 0]),
                span=np.array([1, 1]),
                grid=SimpleNamespace(rows=2, columns=2),
                __len__=lambda: 2,
            )
            said = watch.look(_Sized(patches))
            fired += said is not None
            if said is not None and ("\n" in said or "\x1b" in said):
                raise AssertionError(f"a message that is no line: {said!r}")
        return f"rule fired {fired}"

    return run


class _Sized:
    """A patch set for rules: its length is the number of cells."""

    def __init__(self, values: Any) -> None:
        self.__dict__.update(vars(values))

    def __len__(self) -> int:
        return 2


_ADDRESSES = (
    "rtsp://user:pass@10.0.0.7:554/stream?x=1",
    "http://host/a.m3u8",
    "camera:0",
    "camera:HD Pro",
    "0",
    "/dev/video0",
    "lavfi:testsrc2=size=64x48",
    "loop:clip.mp4",
    "file:///tmp/clip.mp4",
    "file://other/x",
    "frames/*.jpg",
    "frame%03d.png",
    "rtsps://[::1]:322/x",
    "udp://239.0.0.1:1234",
    "https://a.b/c#d",
    "clip.mp4",
    "s3://bucket/x.mp4",
    "~nobody/x",
    "**/*",
)


def _open_addresses(scratch: Path) -> Run:
    from arr_stream.plain_text import redact_url
    from arr_stream.sources.live.spec import hidden, is_live_spec, parse_spec
    from arr_stream.sources.locate import is_glob, local_spec, natural_key, pictures_matching, require_file
    from arr_stream.web.access import AllowedSources, make_allowed

    folder = scratch / "allowed"
    folder.mkdir(exist_ok=True)
    (folder / "clip.mp4").write_bytes(b"x")
    allowed = AllowedSources(
        ("rtsp://user:pass@10.0.0.7:554/stream",), ("rtsp://10.0.0.*", "http://*.example.org/a*"), True, True, (folder,)
    )

    def run(data: bytes) -> str:
        text = data.replace(b"\x00", b"").decode("utf-8", "surrogateescape")
        shown = redact_url(hidden(text))
        if re.search(r"[A-Za-z]://[^/\s]*:pass@", shown):
            raise AssertionError(f"a password stays: {shown!r}")
        natural_key(Path(text[:_LONGEST_NAME]))
        _either(lambda: make_allowed((), patterns=(text,)))
        found = _either(lambda: allowed.resolve(text))
        path = _either(lambda: local_spec(text))
        _either(lambda: require_file(Path(path or "x"), shown))
        if (
            path is not None
            and is_glob(path)
            and text.count("*") < 3
            and not text.startswith(("/", "~"))
            and ".." not in text
        ):
            _either(lambda: pictures_matching(text))
        live = is_live_spec(text)
        return f"{parse_spec(text).family} live {live} allowed {found is not None}"

    return run


def _either(call: Any) -> Any:
    """What a call gives; None where it refuses, which the checks of the last call do not need to know."""
    from arr_stream.errors import ArrStreamError
    from fuzzing.target import checked_error

    try:
        return call()
    except ArrStreamError as exc:
        checked_error(exc)
        return None


def _journal() -> list[bytes]:
    lines_ = [
        {
            "type": "batch",
            "version": 1,
            "options": {"settings": {}, "queries": ["red"]},
            "options_sha256": "0" * 64,
            "versions": {"arr-stream": "0.1.0"},
        },
        {"type": "jobs", "jobs": [["/videos/a.mp4", "a"], ["/videos/b.mp4", "b"]]},
        {"type": "run", "engine": "local", "jobs": 2, "files": 2, "to_do": 2, "time": 1.0},
        {"type": "attempt", "name": "a", "number": 1, "time": 2.0},
        {"type": "finished", "name": "a", "frames": 3, "seconds": 0.5, "digest": "0" * 64, "attempt": 1, "time": 3.0},
        {"type": "failed", "name": "b", "kind": "NoFrames", "message": "x", "attempt": 1, "again": True, "time": 4.0},
        {"type": "ended", "reason": "finished", "time": 5.0},
    ]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines_)
    done = {
        "name": "a",
        "source": "/videos/a.mp4",
        "identity": {"bytes": 3, "mtime_ns": 4},
        "options": "0" * 64,
        "digest": "0" * 64,
        "frames": 3,
        "seconds": 0.5,
        "outputs": ["videos/a/records.jsonl"],
        "notices": [],
        "damaged": None,
        "attempt": 1,
    }
    return [text, text[:-20], b"".join(text.splitlines(keepends=True)[:2]), SPLIT + json.dumps(done).encode()]


def _open_journal(scratch: Path) -> Run:
    from arr_stream.batch.job import Done
    from arr_stream.batch.journal import read_journal, read_past

    path = scratch / "journal.jsonl"

    def run(data: bytes) -> str:
        if data.startswith(SPLIT):
            path.write_bytes(data[1:])
            done = Done.read(path)
            return f"done {done is not None and done.whole}"
        path.write_bytes(data)
        whole = read_journal(path)
        past = read_past(path)
        for name in past.names.values():
            if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\x00" in name:
                raise AssertionError(f"a name that is no name of a folder: {name!r}")
        return f"{min(len(whole), 7)} lines {len(past.names)} names {past.options is not None}"

    return run


def _texts(texts: tuple[str, ...]) -> list[bytes]:
    return [text.encode() for text in texts]


_TOML = (
    b"include = ",
    b'"/dev/zero"',
    b"[[a]]",
    b"'''",
    b'"""',
    b"= {",
    b"2020-01-01",
    b"inf",
    b"\\u0000",
    b"a.b.c.d = 1\n",
    b"__class__",
)
_CSV = (b"pts_seconds", b",,", b'"', b"\r", b"\x00", b"nan", b"1e400", b"0.5", b" ", b"\xef\xbb\xbf", b"1_0")
_ASKED = (
    b"red ",
    b"left ",
    b"'",
    b"\xe2\x80\x9c",
    b"moving ",
    b"%",
    b"auto",
    b"nan",
    b"inf",
    b"1e400",
    b"\xe2\x80\xae",
    b"not ",
)
_RULE = (
    b" and ",
    b" or ",
    b" for 2s",
    b"(",
    b")",
    b"/(a+)+$/",
    b"[0]",
    b"relevance",
    b">=",
    b"answer matches ",
    b"!true ",
    b"@http://",
    b"\\",
)
_URL = (
    b"://",
    b"@",
    b":",
    b"[::1]",
    b"%00",
    b"..",
    b"file:",
    b"loop:",
    b"camera:",
    b"rtsp://10.0.0.1",
    b"*",
    b"[",
    b"%2e",
    b"\\",
    b"?password=",
)

TARGETS = (
    Target(
        "records",
        "patch records and answers",
        _records,
        _open_records,
        (json_line, json_line, json_line, *TEXT),
        2.0,
        ("arr_stream", "json"),
    ),
    Target(
        "settings",
        "presets, includes, --set",
        _settings,
        _open_settings,
        (*TEXT, inserted(_TOML), inserted(_TOML)),
        2.0,
        ("arr_stream", "tomllib"),
    ),
    Target("gaze", "gaze in CSV files", _gaze, _open_gaze, (*TEXT, inserted(_CSV), numbers, lines), 1.2),
    Target(
        "queries", "texts, regions, budgets", lambda: _texts(_QUERIES), _open_queries, (*TEXT, inserted(_ASKED)), 1.5
    ),
    Target(
        "rules",
        "alert rules, commands, addresses to post to",
        lambda: _texts((*_RULES, "!true {message}", "@https://u:p@h/x")),
        _open_rules,
        (*TEXT, inserted(_RULE), inserted(_RULE)),
        1.2,
    ),
    Target(
        "addresses",
        "sources by name, what the page may open",
        lambda: _texts(_ADDRESSES),
        _open_addresses,
        (*PLAIN, *TEXT, inserted(_URL), inserted(_URL)),
        1.2,
    ),
    Target(
        "journal",
        "the journal of a batch, what tells that a file is done",
        _journal,
        _open_journal,
        (json_line, json_line, json_line, *TEXT),
        0.6,
    ),
)
