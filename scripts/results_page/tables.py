"""Tables out of what the commands print: the newer ones print tables, the others have a maker here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from arr_stream.evaluation.tables import ResultTable, Value
from results_page.records import Record, Run


def tables_of(record: Record) -> list[ResultTable]:
    """All tables of a section, in order.

    Raises:
        KeyError: A command printed something else than the section's maker expects.
    """
    maker = MAKERS.get(record.section)
    if maker is not None:
        return maker(record.runs)
    return [ResultTable.from_json(values) for run in record.runs for values in run.result["tables"]]


def _query(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    found = run.result
    width, height = found["size_wh"]
    rows: list[tuple[Value, ...]] = [
        (what, _short(found[f"{key}_ms"]))
        for what, key in (
            ("encoding 273 crops (one batch timed, and scaled up)", "crops"),
            ("one dense pass", "dense"),
            ("relevance on a frame between keyframes", "relevance"),
            (f"the same with its share of the keyframe, every {found['interval']}th frame", "amortised"),
            ("the text encoder, for a new query", "text"),
            ("what a new query costs beside that", "query"),
        )
    ]
    times = ResultTable(
        f"{found['model']}, {width}x{height}, {found['cells']} cells: medians", ("what", "ms"), tuple(rows), digits=2
    )
    return [times, _ratios(found["ratios"])]


def _ratios(ratios: dict[str, float]) -> ResultTable:
    rows = tuple((name, _short(value)) for name, value in ratios.items())
    return ResultTable("Ratios", ("what", "times"), rows, digits=2)


def _short(value: float) -> float | int:
    """Without decimals from a hundred on."""
    return round(value) if value >= 100 else value


def _stages(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    found = run.result
    width, height = found["size_wh"]
    kinds = [*found["stages"].items(), ("**all of perception**", found)]
    rows = [
        (stage, t["median"], t["p95"], t["p99"], k["median"] if k["count"] else None)
        for stage, t, k in ((stage, _between(values), _keyframe(values)) for stage, values in kinds)
    ]
    others = [(name, *(_short(t[key]) for key in ("median", "p95", "p99"))) for name, t in found["baselines"].items()]
    interval = found["interval"]
    return [
        ResultTable(
            f"{found['source']}, {width}x{height}, {found['frames']} frames: ms a frame",
            ("stage", "median", "p95", "p99", "keyframe, median"),
            tuple(rows),
            f"Amortised over an interval of {interval} frames: {found['amortised_ms']:.2f} ms a frame.",
            digits=2,
        ),
        ResultTable("The same frames without arr-stream", ("what", "median", "p95", "p99"), tuple(others), digits=2),
        _ratios(found["ratios"]),
    ]


def _between(values: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = values["between"]
    return found


def _keyframe(values: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = values["keyframe"] if "keyframe" in values else values["keyframes"]
    return found


def _coverage(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    means = run.result["mean_coverage"]
    rows = [(method, *(means[budget][method] for budget in means)) for method in next(iter(means.values()))]
    sequences = {row["sequence"] for row in run.result["sequences"]}
    title = f"Mean coverage of the object, {len(sequences)} sequences"
    return [ResultTable(title, ("choice", *(f"{budget} tokens" for budget in means)), tuple(rows))]


def _carry(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    rows = [
        (row["tracker"], row["interval"], row["iou"], row["milliseconds"], row["times_the_flow"])
        for row in run.result["rows"]
    ]
    reference = [(name, None, None, ms, 1.0) for name, ms in run.result["time_reference"].items()]
    headings = ("tracker", "a mask every ... frames", "mean IoU", "ms a frame", "times the flow")
    return [ResultTable("Carried masks", headings, (*rows, *reference))]


def _flow(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    pairs = list(dict.fromkeys(row["pair"] for row in run.result["pairs"]))
    found = {(row["estimator"], row["pair"]): row for row in run.result["pairs"]}
    true = {row["pair"]: row["true_mean_px"] for row in run.result["pairs"]}
    rows = [
        (estimator, *(found[estimator, pair][key] for pair in pairs for key in ("endpoint_error_px", "milliseconds")))
        for estimator in dict.fromkeys(name for name, _ in found)
    ]
    headings = ("estimator", *(heading for pair in pairs for heading in (f"{pair}, px", "ms")))
    note = "Mean true motion: " + ", ".join(f"{pair} {mean:.1f} px" for pair, mean in true.items()) + "."
    return [ResultTable("Mean endpoint error", headings, tuple(rows), note, digits=2)]


def _text(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    with_words = [row for row in run.result if row["words"]]
    without = [row for row in run.result if not row["words"]]
    words = ResultTable(
        "Pictures with text; ms are processor time of one thread, median of the pictures",
        ("pictures", "finder", "seen on", "recall", "precision", "found", "read", "matched", "ms", "ms with reading"),
        tuple(_text_row(row) for row in with_words),
        "Finders take turns: compare their times with each other only.",
        digits=2,
    )
    if not without:
        return [words]
    blank = ResultTable(
        "Pictures without any text",
        ("pictures", "finder", "text seen on", "ms"),
        tuple(
            (row["folder"], row["finder"], f"{row['something_found']}/{row['pictures']}", row["detect_ms"])
            for row in without
        ),
        digits=0,
    )
    return [words, blank]


def _text_row(row: dict[str, Any]) -> tuple[Value, ...]:
    readable = row["readable"]
    counts = (f"{row[key]}/{readable}" if readable else None for key in ("verbatim", "matched"))
    return (
        row["folder"],
        row["finder"],
        f"{row['something_found']}/{row['pictures']}",
        row["recall"],
        row["precision"],
        f"{row['words_found']}/{row['words']}",
        *counts,
        round(row["detect_ms"]),
        None if row["read_ms"] is None else round(row["read_ms"]),
    )


def _localisation(runs: Sequence[Run]) -> list[ResultTable]:
    headings = ("method", "pass", *(f"{kind}: {what}" for kind in ("red circle", "circle") for what in _FOUND), "ms")
    return [
        ResultTable(f"{run.result['scenes']} {run.label}", headings, tuple(_methods(run.result["rows"])))
        for run in runs
    ]


_FOUND = ("cells", "things", "share")


def _methods(rows: list[dict[str, Any]]) -> Iterable[tuple[Value, ...]]:
    """Each method has two rows: asked by colour and shape, and by shape alone."""
    for both, alone in zip(rows[::2], rows[1::2], strict=True):
        figures = (row[key] for row in (both, alone) for key in ("auc_all", "auc_things", "coverage_share"))
        method, way = both["embedder"].split()[-2:]
        yield (f"`{method}`", f"`{way}`", *figures, round(both["milliseconds"]))


def _passes(runs: Sequence[Run]) -> list[ResultTable]:
    rows = [(f"`{run.label}`", run.result["dense_ms"], run.result["amortised_ms"]) for run in runs]
    headings = ("`clip.passes`", "one pass, ms", "a frame's share with relevance, ms")
    return [ResultTable(runs[0].result["model"], headings, tuple(rows), digits=0)]


def _meaning(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    carried, projected = run.result["carried"], run.result["projected"]
    overlaps = (
        ("queries that are asked", projected["active"]),
        ("others, in the scene", projected["unasked"]),
        ("others, not in the scene", projected["absent"]),
    )
    shares = (
        ("on keyframes", carried["on_keyframes"]),
        ("on frames between", carried["between"]),
        ("kept between", carried["kept"]),
    )
    best = f"The best {projected['chosen']} of {projected['cells']} cells, by 16 channels and by all numbers"
    return [
        ResultTable(best, ("queries", "in common"), overlaps),
        ResultTable(f"Coverage as a share of the best, {carried['queries']} queries", ("", "share"), shares),
    ]


def _strategies(runs: Sequence[Run]) -> list[ResultTable]:
    budgets = list(runs[0].result["mean_coverage"])
    rows = []
    for run in runs:
        mine = [row for row in run.result["sequences"] if row["method"] == "arr-stream"]
        figures: list[Value] = []
        for budget in budgets:
            context = [row["context"] for row in mine if row["budget"] == int(budget)]
            figures += [run.result["mean_coverage"][budget]["arr-stream"], sum(context) / len(context)]
        rows.append((f"`{run.label}`", *figures))
    best = (runs[0].result["mean_coverage"][budget]["oracle"] for budget in budgets)
    rows.append(("best possible", *(value for share in best for value in (share, None))))
    headings = (heading for budget in budgets for heading in (f"coverage, {budget} tokens", "context"))
    return [ResultTable("Coverage of the object by strategy", ("strategy", *headings), tuple(rows))]


def _atlas(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    budgets = list(dict.fromkeys(row["tokens"] for row in run.result))
    found = {(row["clusters"], row["layout"], row["tokens"]): row for row in run.result}
    rows = [
        (clusters, layout, *_pairs(found, clusters, layout, budgets))
        for clusters, layout in dict.fromkeys((clusters, layout) for clusters, layout, _ in found)
    ]
    headings = (heading for tokens in budgets for heading in (f"{tokens} tokens: detail", "IoU"))
    return [ResultTable("Tokens as means over cells", ("regions", "tokens laid out", *headings), tuple(rows))]


def _pairs(found: dict[Any, dict[str, Any]], clusters: str, layout: str, budgets: list[int]) -> Iterable[Value]:
    for tokens in budgets:
        row = found.get((clusters, layout, tokens), {})
        yield from (row.get("detail"), row.get("object_iou"))


def _cascade(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    rows = [
        (
            row["kind"],
            row["tokens"],
            row["scored_most"],
            f"{row['saving']:.1f}x",
            row["coverage_all"],
            row["coverage_cascade"],
            f"{round(row['lost'], 3) + 0.0:.1%}",  # never -0.0%
            f"{row['all_ms']:.2f}",
            f"{row['cascade_ms']:.2f}",
        )
        for row in run.result["rows"]
    ]
    headings = ("asked by", "tokens", "scored", "fewer", "all", "cascade", "lost", "all, ms", "cascade, ms")
    return [ResultTable(f"{run.result['rows'][0]['places']} places", headings, tuple(rows))]


def _questions(runs: Sequence[Run]) -> list[ResultTable]:
    rows: list[tuple[Value, ...]] = []
    kinds: dict[tuple[str, str], dict[str, Value]] = {}
    for run in runs:
        name = "{}" if run is runs[0] else f"{{}}, {run.label}"
        for row in run.result["rows"]:
            seen = (row["seen"], row["shown"], row["whole"])
            rows.append((name.format(row["choice"]), row["budget"], round(row["tokens"]), *seen))
        for row in run.result["kinds"]:
            if row["choice"] in ("ours", "random") and row["budget"] != "100%":
                kinds.setdefault((name.format(row["choice"]), row["budget"]), {})[row["kind"]] = row["seen"]
    names = list(dict.fromkeys(kind for found in kinds.values() for kind in found))
    by_kind = tuple((*key, *(found.get(name) for name in names)) for key, found in kinds.items())
    headings = ("choice", "budget", "tokens", "seen", "at any detail", "wholly")
    return [
        ResultTable("What the choices cover", headings, tuple(rows)),
        ResultTable("Seen, by kind of question", ("choice", "budget", *names), by_kind),
    ]


def _vlm(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    found, one = run.result, run.result["vision"]
    about = f"{found['model']}; {found['dtype']}, {found['device']}, {found['threads']} threads"
    counted = one["operations"]
    rows: list[tuple[Value, ...]] = []
    for part in ("vision", "prefill"):
        ours, stock = one[f"{part}_ms"]["median"], one[f"stock_{part}_ms"]["median"]
        rows.append((part, _short(stock), _short(ours), stock / ours, counted.get(part)))
    rows.append(("a question about a frame in memory", None, _short(one["question_ms"]["median"]), None, None))
    side = found["side_px"]
    tables = [
        ResultTable(
            f"One frame of {side}x{side}, {one['tokens']} of {one['cells']} cells; median ms",
            ("what", "stock", "ours", "times", "counted"),
            tuple(rows),
            f"Prompts of {one['stock_prompt_tokens']} and {one['prompt_tokens']} tokens; {about}.",
            digits=2,
        )
    ]
    return [*tables, _clip(found["end_to_end"], side)] if found["end_to_end"] else tables


def _clip(clip: dict[str, Any], side: int) -> ResultTable:
    ours = clip["ours_ms"]["median"]
    rows: list[tuple[Value, ...]] = [(name, _short(t["median"]), None, None) for name, t in clip["parts_ms"].items()]
    rows.append(("**ours, all of it**", _short(ours), 1.0, f"{clip['sent']}, and {clip['held']} held"))
    for name, key in (("stock, whole frames", "stock"), ("stock, at most 768 tokens a pair", "capped")):
        stock = clip[f"{key}_ms"]["median"]
        rows.append((name, _short(stock), stock / ours, clip[f"{key}_tokens"]))
    title = f"{clip['frames']} frames of {side}x{side} ({clip['keyframes']} keyframes), {clip['shown']} of them shown"
    note = f"One question, and {clip['answer_tokens']} tokens of an answer. Decoding the video is in neither."
    return ResultTable(title, ("what", "median ms", "times ours", "visual tokens"), tuple(rows), note, digits=2)


def _modes(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    side = run.result["side_px"]
    rows = [
        tuple(row[key] for key in ("mode", "chosen", "kept", "vision_ms", "prefill_ms", "cache_mb", "decode_ms"))
        for row in run.result["modes"]
    ]
    headings = ("mode", "chosen", "kept", "vision ms", "prefill ms", "cache MB", "ms a token of the answer")
    return [ResultTable(f"One frame of {side}x{side}; medians", headings, tuple(rows), digits=1)]


def _memory(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    found = run.result["memory"]
    rebuilt = ", ".join(f"{count} x {why}" for why, count in found["rebuilds"].items()) or "none"
    resident = ", ".join(f"{each:.0f}" for each in found["resident_mb"])
    rows: tuple[tuple[Value, ...], ...] = (
        ("rebuilds", rebuilt),
        (
            f"cache, largest, of what {found['context_tokens']} tokens take",
            f"{found['cache_peak_bytes'] / 1e6:.1f} of {found['budget_bytes'] / 1e6:.1f} MB",
        ),
        ("resident memory, median of each fifth", f"{resident} MB"),
        ("resident memory, last fifth against the second", f"{found['growth_mb']:+.1f} MB"),
        ("resident memory, largest", f"{found['resident_peak_mb']:.0f} MB"),
    )
    return [ResultTable(f"{found['frames']} frames, {found['asked']} questions", ("what", "measured"), rows)]


def _live(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    marks = {None: None, True: "reached", False: "missed"}
    rows = [
        (
            row["part"],
            row["what"],
            f"{row['value']:.1f} {row['unit']}".strip(),
            None if row["limit"] is None else f"at {'least' if row['at_least'] else 'most'} {row['limit']:g}",
            marks[row["reached"]],
        )
        for row in run.result["figures"]
    ]
    browser = run.result["machine"].get("browser", "")
    headings = ("part", "what", "measured", "to reach", "")
    return [ResultTable("Live streams", headings, tuple(rows), browser and f"Browser: {browser}.")]


def _fuzz(runs: Sequence[Run]) -> list[ResultTable]:
    (run,) = runs
    found = run.result
    rows: list[tuple[Value, ...]] = [
        (
            target["target"],
            target["inputs"],
            target["values"],
            target["refused"],
            target["gained"],
            sum(target["found"].values()),
            target["slowest_seconds"],
            target["peak_mb"],
        )
        for target in found["targets"]
    ]
    all_findings = sum(int(row[5] or 0) for row in rows)
    title = f"{found['inputs']} inputs in {found['seconds']:.0f} s, seed {found['seed']}: {all_findings} findings"
    columns = ("what reads", "inputs", "values", "refused", "lines gained", "findings", "slowest, s", "most memory, MB")
    return [ResultTable(title, columns, tuple(rows), digits=1)]


MAKERS: dict[str, Callable[[Sequence[Run]], list[ResultTable]]] = {
    "query": _query,
    "stages": _stages,
    "coverage": _coverage,
    "carry": _carry,
    "flow": _flow,
    "text": _text,
    "localisation": _localisation,
    "passes": _passes,
    "meaning": _meaning,
    "strategies": _strategies,
    "atlas": _atlas,
    "cascade": _cascade,
    "questions": _questions,
    "vlm": _vlm,
    "modes": _modes,
    "memory": _memory,
    "fuzz": _fuzz,
    "live": _live,
}
"""By section; what is not here prints tables itself."""
