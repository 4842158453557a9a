"""Tables of figures."""

from __future__ import annotations

import json

from arr_stream.evaluation.tables import ResultTable, plain

TABLE = ResultTable("Speed", ("what", "ms", "times"), (("a|b", 1.23456, 2), ("none", None, 3)), "Medians.", digits=2)


def test_markdown_has_one_line_a_row_and_escapes_bars() -> None:
    assert TABLE.markdown() == (
        "**Speed**\n\n| what | ms | times |\n| --- | ---: | ---: |\n| a\\|b | 1.23 | 2 |\n| none | – | 3 |\n\nMedians."
    )


def test_json_round_trip() -> None:
    again = ResultTable(**json.loads(json.dumps(plain(TABLE))))
    assert again.markdown() == TABLE.markdown()
