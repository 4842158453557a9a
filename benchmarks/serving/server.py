"""A vLLM that runs, from an environment of its own, with the plugin or without."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arr_stream.vlm.vllm_plugin import ARCHITECTURES

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def plugin(family: str = "qwen3_vl") -> tuple[str, str]:
    """Return the arguments that make a server place cells, for a `model_type`."""
    return "--hf-overrides", json.dumps({"architectures": [ARCHITECTURES[family]]})


PLUGIN = plugin()
_START_SECONDS = 300


class VllmServer:
    """A server process.

    Args:
        executable: `vllm`.
        model: A folder with a Qwen3-VL; its name there is `tiny`.
        arguments: Beside those that always are.
        log: Where it writes.
        port: Of loopback.
        environment: Beside that of this process.
    """

    def __init__(
        self,
        executable: str,
        model: Path,
        arguments: Sequence[str],
        log: Path,
        *,
        port: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.address = f"http://127.0.0.1:{port}/v1"
        self.log = log
        command = [executable, "serve", str(model), "--served-model-name", "tiny", "--dtype", "float32"]
        command += ["--enforce-eager", "--block-size", "32", "--enable-prompt-tokens-details"]
        command += ["--host", "127.0.0.1", "--port", str(port), *arguments]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                env=os.environ | ENVIRONMENT | dict(environment or {}),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            RuntimeError: The server ended, or did not come up; with the end of its log.
        """
        ended = time.monotonic() + _START_SECONDS
        while time.monotonic() < ended and self.process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.address}/models", timeout=2).close()
                return
            time.sleep(0.5)
        raise RuntimeError(f"vLLM did not come up: {self.log.read_text(errors='replace')[-4000:]}")

    def stop(self) -> None:
        """End it and all of its processes."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait(10)

    def post(self, messages: list[dict[str, Any]], **changes: Any) -> tuple[int, dict[str, Any]]:
        """A status and an answer."""
        body = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0} | changes
        request = urllib.request.Request(
            f"{self.address}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.load(refusal)

    def likeliest(self, messages: list[dict[str, Any]]) -> tuple[str, list[float], int]:
        """The answer, the five highest log probabilities of its first token, and the tokens of the prompt."""
        status, answer = self.post(messages, logprobs=True, top_logprobs=5)
        if status != 200:
            raise RuntimeError(f"{status}: {answer}")
        [choice] = answer["choices"]
        first = choice["logprobs"]["content"][0]["top_logprobs"]
        logs = sorted((each["logprob"] for each in first if math.isfinite(each["logprob"])), reverse=True)
        return choice["message"]["content"].strip(), logs, answer["usage"]["prompt_tokens"]


@contextlib.contextmanager
def vllm_server(
    executable: str,
    model: Path,
    log: Path,
    *arguments: str,
    port: int = 0,
    environment: Mapping[str, str] | None = None,
) -> Iterator[VllmServer]:
    """Started, answering, and ended with all of its processes."""
    server = VllmServer(executable, model, arguments, log, port=port or free_port(), environment=environment)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
