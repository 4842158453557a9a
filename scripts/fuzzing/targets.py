"""Every target by name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from fuzzing import media_targets, text_targets, web_targets, weight_targets
from fuzzing.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (media_targets, text_targets, web_targets, weight_targets)
    for target in module.TARGETS
}


def find_target(spec: str) -> Target:
    """A target by its name, or `FILE.py:NAME` for one that stands elsewhere."""
    file, colon, name = spec.rpartition(":")
    if not colon:
        return TARGETS[spec]
    module_spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    module_spec.loader.exec_module(module)
    found: Target = getattr(module, name)
    return found
