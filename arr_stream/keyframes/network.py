"""ONNX model that runs on onnxruntime's own threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy.typing as npt

from arr_stream.processes import usable_cores
from arr_stream.types import FloatArray

# onnxruntime sends telemetry for each session, unless this is set before its import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class Network:
    """An ONNX model.

    Args:
        model: The file or its content.
        threads: Threads of onnxruntime; None for one a core.
    """

    def __init__(self, model: Path | bytes, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        # The number includes the caller's thread, which stays idle during a run.
        options.intra_op_num_threads = (threads or usable_cores()) + 1
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        # Spinning threads take cores from the frame loop.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        content, providers = model if isinstance(model, bytes) else str(model), ["CPUExecutionProvider"]
        # The first session of a process also sets this for its own thread, so a temporary thread makes it.
        with ThreadPoolExecutor(1) as thread:
            self._session = thread.submit(onnxruntime.InferenceSession, content, options, providers).result()

    @property
    def inputs(self) -> Mapping[str, tuple[int | str | None, ...]]:
        """Shape of each input by name; dynamic dimensions are names or None."""
        return {each.name: tuple(each.shape) for each in self._session.get_inputs()}

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the model file."""
        named: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        return named

    def __call__(self, *inputs: npt.NDArray[Any]) -> list[FloatArray]:
        """Return the outputs, computed by onnxruntime's own threads.

        Many operands of the last layers are denormal, and a processor takes 50 times as long for those unless the
        thread treats them as zero. onnxruntime sets that mode for its own threads only.
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
            # An interrupted caller must not end the interpreter before the callback returns to it.
            wait([outcome])
