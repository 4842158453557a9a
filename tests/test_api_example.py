"""The example of a client in docs/api.md, as it stands there, against a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.web_servers import running

PAGE = Path(__file__).parent.parent / "docs" / "api.md"


def test_the_example_prints_frames() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [text for text in examples if "websockets" in text]
    with running() as server:
        id = server.add()
        program = subprocess.Popen(
            [sys.executable, "-u", "-c", example.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert program.stdout is not None
            lines = [program.stdout.readline() for _ in range(3)]
        finally:
            program.kill()
            program.communicate()
    assert all(re.fullmatch(rf"{id} [\d.]+ \d+ cells\n", line) for line in lines), lines
