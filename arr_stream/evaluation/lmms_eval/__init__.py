"""Plugin for lmms-eval, the field's harness: `--model arr_stream`. The harness finds it by its entry point."""

from __future__ import annotations

from typing import Any

REMEDY = "pip install 'arr-stream[lmms-eval]' && pip install --no-deps lmms-eval==0.7.3"
"""Install command; the harness requires an older PyAV than arr-stream, and runs with the newer one."""


def manifest() -> Any:
    """Return the model for the harness's registry."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest("arr_stream", chat_class_path=f"{__name__}.model.ChatModel")
