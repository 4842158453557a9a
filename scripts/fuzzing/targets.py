"""Every target by name."""

from __future__ import annotations

from fuzzing import media_targets, text_targets, web_targets, weight_targets
from fuzzing.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (media_targets, text_targets, web_targets, weight_targets)
    for target in module.TARGETS
}
