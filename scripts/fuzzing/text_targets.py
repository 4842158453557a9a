"""Fuzzing of what is written down: records, presets, gaze, queries, rules, addresses."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fuzzing.structure import json_line
from fuzzing.target import CORPUS, Run, Target, check_error, texts

_LONGEST_NAME = 255
SPLIT = b"\x1e"
"""Between the parts of an input that has several."""


def _records() -> list[bytes]:
    header, frame, answer, end = (CORPUS / "records.jsonl").read_bytes().splitlines(keepends=True)
    small = {"frame_size_wh": [32, 32], "grid_hw": [1, 1], "fine_cell_px": [32.0, 32.0]}
    secret = {"source": "rtsp://user:secret@host/x", "query": None}
    return [
        header + frame + answer + _changed(frame, {"index": 1, "pts_seconds": 0.04}) + end,
        header + frame,
        header + _changed(frame, small) + end,
        _changed(header, secret) + end,
        b"{}\n",
        b"\n",
    ]


def _changed(line: bytes, values: dict[str, Any]) -> bytes:
    return json.dumps(json.loads(line) | values).encode() + b"\n"


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


def _open_gaze(scratch: Path) -> Run:
    import numpy as np

    from arr_stream.relevance.gaze import load_gaze, splat

    path = scratch / "gaze.csv"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        track = load_gaze(path)
        points = track.between(-math.inf, math.inf)
        bump = splat(points[:4], (6, 8))
        if not np.isfinite(bump).all() or not 0 <= bump.min() <= bump.max() <= 1:
            raise AssertionError(f"a map up to {bump.max()}")
        return f"{min(len(points), 12)} samples"

    return run


def _open_queries(scratch: Path) -> Run:
    from arr_stream.budget import budget_tokens
    from arr_stream.relevance.query import parse_region, parse_text

    def run(data: bytes) -> str:
        kind, text = data[:1], data[2:].decode("utf-8", "surrogateescape")
        if kind == b"r":
            region = parse_region(text).checked((640, 360))
            x, y, w, h = region.xywh
            if not (0 <= x < x + w <= 640 and 0 <= y < y + h <= 360):
                raise AssertionError(f"a region of {region.xywh}")
            return "region"
        if kind == b"b":
            if not 1 <= budget_tokens(text, 220) <= 220:
                raise AssertionError(f"budget {text!r}")
            return "budget"
        query = parse_text(text)
        notice = query.notice() or ""
        if len(query.label) > 48 or "\n" in query.label or "\n" in notice:
            raise AssertionError(f"label {query.label!r}, notice {notice!r}")
        return f"text {min(len(query.terms), 5)} terms {min(len(query.unknown_words), 5)} unknown"

    return run


class _Patches(SimpleNamespace):
    """The fields of a patch set that rules read."""


def _open_rules(scratch: Path) -> Run:
    import numpy as np

    from arr_stream.live.alerts import RuleWatch, Webhook, parse_rule

    moving = SimpleNamespace(plane=lambda name: np.zeros((4, 4), np.float32))
    seen = _Patches(
        query_scores=(0.7, 0.2),
        texture=moving,
    )

    def run(data: bytes) -> str:
        text = data.decode("utf-8", "surrogateescape")
        if text.startswith("@"):
            Webhook(text[1:]).close()
            return "address"
        watch, fired = RuleWatch(parse_rule(text)), 0
        for index in range(4):
            patches: Any = _Patches(**vars(seen), pts_seconds=index * 0.7)
            said = watch.update(patches)
            fired += said is not None
            if said is not None and ("\n" in said or "\x1b" in said):
                raise AssertionError(f"a message that is no line: {said!r}")
        return f"rule fired {fired}"

    return run


def _open_addresses(scratch: Path) -> Run:
    from arr_stream.plain_text import redact_url
    from arr_stream.sources.live.spec import hidden, is_live_spec, parse_spec
    from arr_stream.sources.locate import is_glob, local_spec, natural_key, pictures_of, require_file
    from arr_stream.web.access import AllowedSources

    folder = scratch / "allowed"
    folder.mkdir(exist_ok=True)
    (folder / "clip.mp4").write_bytes(b"x")
    allowed = AllowedSources(
        ("rtsp://user:pass@10.0.0.7:554/stream",), ("rtsp://10.0.0.*", "http://*.example.org"), True, (folder,)
    )

    def run(data: bytes) -> str:
        text = data.replace(b"\x00", b"").decode("utf-8", "surrogateescape")
        shown = redact_url(hidden(text))
        if re.search(r"[A-Za-z]://[^/\s]*:pass@", shown):
            raise AssertionError(f"a password stays: {shown!r}")
        natural_key(Path(text[:_LONGEST_NAME]))
        _either(lambda: AllowedSources(patterns=(text,)))
        found = _either(lambda: allowed.resolve(text))
        path = _either(lambda: local_spec(text))
        _either(lambda: require_file(Path(path or "x"), shown))
        searched = path is not None and is_glob(path) and text.count("*") < 3
        if searched and not text.startswith(("/", "~")) and ".." not in text:
            # Below a folder that is not there: a pattern of the working folder may open what it matches.
            _either(lambda: pictures_of(f"nowhere/{text}"))
        return f"{parse_spec(text).family} live {is_live_spec(text)} allowed {found is not None}"

    return run


def _either(call: Callable[[], Any]) -> Any:
    """Return a call's result; None if it refuses, which the last call's checks may ignore."""
    from arr_stream.errors import ArrStreamError

    try:
        return call()
    except ArrStreamError as exc:
        check_error(exc)
        return None


def _settings() -> list[bytes]:
    return [SPLIT.join(part.encode() for part in parts) for parts in texts("settings")]


def _written(name: str) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts(name)]


TARGETS = (
    Target("records", "patch records and answers", _records, _open_records, "json", json_line, 2.0),
    Target("settings", "presets, includes, --set", _settings, _open_settings, "toml", share=2.0),
    Target("gaze", "gaze in CSV files", _written("gaze"), _open_gaze, "csv", share=1.2),
    Target("queries", "texts, regions, budgets", _written("queries"), _open_queries, "queries", share=1.5),
    Target("rules", "alert rules, addresses to post to", _written("rules"), _open_rules, "rules", share=1.2),
    Target(
        *("addresses", "sources by name, what the page may open", _written("addresses"), _open_addresses),
        *("addresses", None, 1.2),
    ),
)
