"""A network on onnxruntime alone, run by threads of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy.typing as npt

from arr_stream.processes import usable_cores
from arr_stream.types import FloatArray

# onnxruntime reports each session to its maker, unless this is set before it is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class Network:
    """An ONNX model.

    Args:
        model: The file, or its content.
        threads: For onnxruntime; None for one a core.
    """

    def __init__(self, model: Path | bytes, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        # It counts the caller's thread, which a run leaves idle.
        options.intra_op_num_threads = (threads or usable_cores()) + 1
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        # Threads that wait by spinning take their cores from the frames.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # A process's first session sets that for the thread that makes it, too: here, one that ends.
        self._session = _made_apart(
            lambda: onnxruntime.InferenceSession(
                model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
            )
        )

    @property
    def inputs(self) -> Mapping[str, tuple[int | str | None, ...]]:
        """The shape of each input by its name; sides that are free are names, or None."""
        return {each.name: tuple(each.shape) for each in self._session.get_inputs()}

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the file."""
        named: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        return named

    def __call__(self, *inputs: npt.NDArray[Any]) -> list[FloatArray]:
        """Return the outputs, made by onnxruntime's own threads.

        Much of what the last layers multiply is so small that a processor takes 50 times as long over it as over other
        numbers, unless it may call it zero: a state of each thread, which onnxruntime sets for its own.
        """
        outcome: Future[list[FloatArray]] = Future()

        def tell(outputs: list[FloatArray], _: object, error: str) -> None:
            if error:
                outcome.set_exception(RuntimeError(error))
            else:
                outcome.set_result(outputs)

        self._session.run_async(None, dict(zip(self.inputs, inputs, strict=True)), tell, None)
        try:
            return outcome.result()
        finally:
            # Whoever is interrupted must not leave the interpreter while a thread comes back to it.
            wait([outcome])


def _made_apart(make: Callable[[], Any]) -> Any:
    """Return the result of `make`, run in a thread that ends."""
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(make())
        except BaseException as exc:
            outcome.set_exception(exc)

    # Not a daemon, whatever the caller is: should the caller be interrupted, a process that ends waits for it.
    threading.Thread(target=work, name="network", daemon=False).start()
    return outcome.result()
