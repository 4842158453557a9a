"""Findings of `scripts/vllm_hooks.py` in a vLLM with moved hooks; test_vllm_plugin.py runs the true releases."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "vllm_hooks.py"
MADE_UP = """
class Model:
    size: int

    def __init__(self) -> None:
        self.width: int = 1

    def encode(self, pixels, grid):
        self.register_buffer("table", pixels)

    def encode_video(self, pixels, *, rate): ...
"""


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, beside a package of the name `vllm` with one class, of which the plugin imports another one too."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("__version__ = '0.99.0'\n")
    (tmp_path / "vllm" / "models.py").write_text(MADE_UP)
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "model.py").write_text("from vllm.models import Model, Mode\nfrom vllm.gone import Other\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    spec = importlib.util.spec_from_file_location("vllm_hooks", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for table in ("OVERRIDDEN", "CALLED", "ATTRIBUTES"):
        monkeypatch.setattr(module, table, {})
    monkeypatch.setattr(module, "PLUGIN", plugin)
    return module


def test_imports_that_are_gone(hooks: ModuleType) -> None:
    assert list(hooks.moved()) == [
        "vllm.gone:Other: No module named 'vllm.gone'",
        "vllm.models:Mode: missing; similar in vllm.models: Model",
    ]


@pytest.mark.parametrize(
    ("table", "place", "names", "line"),
    [
        ("OVERRIDDEN", "Model.encode", "self pixels grid", ""),
        ("OVERRIDDEN", "Model.encode", "self pixels", "expected (self, pixels), found (self, pixels, grid)"),
        ("OVERRIDDEN", "Model.encoded", "self", "missing; similar in vllm.models:Model: encode, encode_video"),
        ("CALLED", "Model.encode", "self pixels grid", ""),
        ("CALLED", "Model.encode_video", "self pixels", "expected (self, pixels), found (self, pixels, *, rate)"),
        ("CALLED", "Model.encode", "self pixels grid times", "expected (self, pixels, grid, times), found"),
        ("CALLED", "Tower.encode", "self", "missing; vllm.models:Tower is missing, too"),
        ("ATTRIBUTES", "Model", "size width table encode", ""),
        ("ATTRIBUTES", "Model", "widths", ".widths: missing; similar: width"),
    ],
)
def test_what_moved(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch, table: str, place: str, names: str, line: str
) -> None:
    (hooks.PLUGIN / "model.py").write_text("")
    monkeypatch.setattr(hooks, table, {f"vllm.models:{place}": names})
    lines = list(hooks.moved())
    assert len(lines) == bool(line)
    assert not line or line in lines[0]


def test_the_count_is_printed_last(hooks: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert hooks.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "vLLM 0.99.0: 2 of 3 hooks moved"
