"""Asks the Parquet records of a batch in SQL: how much was chosen in each video, and which show a query most.

arr-stream batch videos/ -o out --query red --format parquet
pip install duckdb
python examples/read_parquet_duckdb.py out
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

# Names of videos are text, also where they look like numbers or dates.
TABLE = "read_parquet($files, hive_partitioning = true, hive_types = {'video': VARCHAR})"

MEANS = f"SELECT video, avg(num_cells) FROM {TABLE} GROUP BY video ORDER BY video"

SHARES = f"""
    WITH counted AS (
        SELECT video, query, count(*) AS wanted, sum(count(*)) OVER (PARTITION BY video) AS total
        FROM {TABLE} GROUP BY video, query
    )
    SELECT video, query, wanted / total AS share FROM counted WHERE query IS NOT NULL ORDER BY query, share DESC, video
"""

REASONS = f"SELECT scorer, count(*) FROM {TABLE} GROUP BY scorer ORDER BY count(*) DESC"


def main(output: Path) -> None:
    database = duckdb.connect()
    frames, cells = ({"files": str(output / kind / "*" / "*.parquet")} for kind in ("frames", "cells"))
    shares = database.execute(SHARES, cells).fetchall()

    print("cells a frame, and the share of them that each query wanted:")
    for video, mean in database.execute(MEANS, frames).fetchall():
        told = ", ".join(f"query {query}: {share:.0%}" for name, query, share in shares if name == video)
        print(f"{video}  {mean:.1f}  {told}")
    most: dict[int, str] = {}
    for video, query, _ in shares:
        most.setdefault(query, video)
    for query, video in most.items():
        print(f"query {query} shows most in {video}")
    print("why cells were chosen:", dict(database.execute(REASONS, cells).fetchall()))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} OUTPUT_FOLDER")
    main(Path(sys.argv[1]))
