"""Token budget of a frame."""

from __future__ import annotations

import re

from arr_stream.errors import BudgetError

DEFAULT_TOKENS = 273


def budget_tokens(budget: str, cells: int) -> int:
    """Return the tokens of a frame.

    Args:
        budget: `auto` (273, or the whole grid where that is smaller), a whole number of tokens, or a share of the
            grid such as `10%`.
        cells: Cells of the grid.

    Returns:
        At most `cells`: of a grid smaller than the budget, all cells are chosen.

    Raises:
        BudgetError: Not a number, or not above zero.
    """
    text = budget.strip()
    if text == "auto":
        return min(DEFAULT_TOKENS, cells)
    try:
        tokens = round(float(text[:-1]) / 100 * cells) if text.endswith("%") else int(text)
    except (ValueError, OverflowError) as exc:
        share = re.fullmatch(r"0?\.\d+", text)
        remedy = f"for a share write {100 * float(text):g}%" if share else "write 273, 10% or auto"
        raise BudgetError(f"budget {budget!r} is neither tokens nor a share", remedy=remedy) from exc
    if text.endswith("%") and 0 < float(text[:-1]) <= 100:
        return max(1, tokens)
    if text.endswith("%") or tokens < 1:
        raise BudgetError(f"budget {budget!r} is {tokens} tokens", remedy="give 1 or more, 1% to 100%, or auto")
    return min(tokens, cells)
