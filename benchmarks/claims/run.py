"""`python -m benchmarks claims`: every figure that the design promised, measured here, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arr_stream.errors import InvalidSetting
from arr_stream.evaluation.tables import Report, ResultTable
from benchmarks.claims.base import Claim, ClaimsPlan, claims_table
from benchmarks.claims.projection import projection_claims
from benchmarks.claims.regions import regions_claims
from benchmarks.claims.texture import texture_claims
from benchmarks.claims.video import video_claims

PARTS: dict[str, Callable[[ClaimsPlan], tuple[list[Claim], list[ResultTable]]]] = {
    "video": video_claims,
    "projection": projection_claims,
    "texture": texture_claims,
    "regions": regions_claims,
}


@dataclass(frozen=True, slots=True)
class ClaimsReport(Report):
    """All claims that were measured.

    Args:
        size_wh: Size of the frames in pixels.
        claims: A row each.
        details: Further tables: where the time goes.
    """

    size_wh: tuple[int, int]
    claims: tuple[Claim, ...]
    details: tuple[ResultTable, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        return (claims_table(self.claims, self.size_wh), *self.details)

    def facts(self) -> Mapping[str, Any]:
        return {"claims": [claim.as_json() for claim in self.claims]}


def bench_claims(parts: Sequence[str], plan: ClaimsPlan) -> ClaimsReport:
    """Measure the parts, one after the other.

    Args:
        parts: Names from `PARTS`.
        plan: How.

    Raises:
        InvalidSetting: There is no such part, or no such architecture.
        BackendUnavailable: A package or weights are missing.
        MeasurementFailed: A part of a keyframe failed.
    """
    for name in parts:
        if name not in PARTS:
            raise InvalidSetting(f"--part {name}: there is no such part", remedy=f"choose from {', '.join(PARTS)}")
    claims: list[Claim] = []
    details: list[ResultTable] = []
    for name in parts:
        plan.progress(name)
        found, tables = PARTS[name](plan)
        claims += found
        details += tables
    return ClaimsReport(plan.size_wh, tuple(claims), tuple(details))
