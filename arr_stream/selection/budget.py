"""How many tokens a frame may cost."""

from __future__ import annotations

from arr_stream.errors import BudgetError

DEFAULT_TOKENS = 273


def budget_tokens(budget: str, cells: int) -> int:
    """Tokens a frame.

    Args:
        budget: `auto` (273, or the whole grid where that is smaller), a whole number of tokens, or a share of the
            grid such as `10%`.
        cells: Cells of the grid.

    Raises:
        BudgetError: Not a number, zero, or more than the grid has.
    """
    text = budget.strip()
    if text == "auto":
        return min(DEFAULT_TOKENS, cells)
    try:
        tokens = round(float(text[:-1]) / 100 * cells) if text.endswith("%") else int(text)
    except (ValueError, OverflowError) as exc:
        raise BudgetError(f"budget {budget!r} is neither tokens nor a share", remedy="write 273, 10% or auto") from exc
    if text.endswith("%") and 0 < float(text[:-1]) <= 100:
        return max(1, tokens)
    if not 1 <= tokens <= cells:
        raise BudgetError(
            f"budget {budget!r} is {tokens} tokens", remedy=f"this grid takes 1 to {cells}, or 1% to 100%, or auto"
        )
    return tokens


def fitted_tokens(budget: str, cells: int) -> int:
    """As `budget_tokens`, but all cells of a grid that is smaller than the budget."""
    try:
        return budget_tokens(budget, cells)
    except BudgetError:
        return cells
