"""What pyproject.toml cannot say: presets lie in `pipelines/` here, and in `arr_stream/presets/` once installed."""

from __future__ import annotations

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["arr_stream", "arr_stream.*"]), "arr_stream.presets"],
    package_dir={"arr_stream.presets": "pipelines"},
)
