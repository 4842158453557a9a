"""transformers, if it is here and of a version that this package was tried with."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from arr_stream.errors import BackendUnavailable, ModelUnsupported

SUPPORTED = (">=5.18", "<5.24")
"""Versions of transformers whose Qwen3-VL is built as this package expects."""
INSTALL = "pip install 'arr-stream[vlm]'"


def use_transformers() -> Any:
    """The module, its version checked first and its progress bars and advice switched off.

    Raises:
        BackendUnavailable: It is not installed, or cannot be imported.
        ModelUnsupported: It is older or newer than `SUPPORTED`.
    """
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError as exc:
        raise BackendUnavailable("Qwen3-VL needs transformers, which is not installed", remedy=INSTALL) from exc
    wanted = ",".join(SUPPORTED)
    try:
        from packaging.specifiers import SpecifierSet

        if not SpecifierSet(wanted).contains(version, prereleases=True):
            raise ModelUnsupported(
                f"transformers {version} is installed, and Qwen3-VL is supported with {wanted}",
                remedy=f"pip install 'transformers{wanted}'",
            )
        import transformers
    except ImportError as exc:
        raise BackendUnavailable(f"transformers {version} cannot be imported: {exc}", remedy=INSTALL) from exc
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


def need_package(name: str, what_for: str, remedy: str = INSTALL) -> None:
    """Refuse before work begins what would fail later for want of a package.

    Raises:
        BackendUnavailable: It is not installed.
    """
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError as exc:
        raise BackendUnavailable(f"{what_for} needs {name}, which is not installed", remedy=remedy) from exc
