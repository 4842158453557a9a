"""Makes vLLM 0.32 prune video on the processor, where its runner forgets to say that it does and breaks off.

Loaded by that vLLM as a plugin, and by no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def register() -> None:
    """Called by vLLM in each of its processes."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    load = CPUModelRunner.load_model

    def load_model(self: Any, *arguments: Any, **options: Any) -> None:
        load(self, *arguments, **options)
        multimodal = self.model_config.multimodal_config
        self.is_multimodal_pruning_enabled = multimodal is not None and multimodal.is_multimodal_pruning_enabled()

    CPUModelRunner.load_model = load_model


@contextmanager
def found_by_vllm() -> Iterator[dict[str, str]]:
    """Yield environment variables that let vLLM find this plugin."""
    with TemporaryDirectory() as folder:
        facts = Path(folder) / "pruning_on_cpu-0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: pruning-on-cpu\nVersion: 0\n")
        entry = f"pruning_on_cpu = {__name__}:register"
        (facts / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{entry}\n")
        yield {"PYTHONPATH": f"{folder}:{Path(__file__).resolve().parents[2]}"}
