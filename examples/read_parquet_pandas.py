"""Reads the Parquet records of a batch with pandas: how much was chosen in each video, and which show a query most.

arr-stream batch videos/ -o out --query red --format parquet
pip install pandas pyarrow
python examples/read_parquet_pandas.py out
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

# Names of videos are text, also where they look like numbers or dates.
BY_VIDEO = ds.partitioning(pa.schema([("video", pa.string())]), flavor="hive")


def main(output: Path) -> None:
    frames = pd.read_parquet(output / "frames", partitioning=BY_VIDEO, columns=["video", "index", "num_cells"])
    cells = pd.read_parquet(output / "cells", partitioning=BY_VIDEO, columns=["video", "scorer", "query", "score"])
    means = frames.groupby("video")["num_cells"].mean()
    # A cell that a query asked for more than anything else did has that query's number.
    wanted = cells[cells["query"].notna()].groupby(["video", "query"]).size().unstack(fill_value=0)
    shares = wanted.div(cells.groupby("video").size(), axis=0).reindex(means.index).fillna(0.0)

    print("cells a frame, and the share of them that each query wanted:")
    for video in means.index:
        told = ", ".join(f"query {query:.0f}: {share:.0%}" for query, share in shares.loc[video].items())
        print(f"{video}  {means[video]:.1f}  {told}")
    for query in shares.columns:
        print(f"query {query:.0f} shows most in {shares[query].idxmax()}")
    print("why cells were chosen:", cells["scorer"].value_counts().to_dict())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} OUTPUT_FOLDER")
    main(Path(sys.argv[1]))
