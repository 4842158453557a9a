"""Which lines of some packages have run; told once each, so that what is known costs little.

From Python 3.12 on `sys.monitoring` switches a line off when it has been seen. Before, `sys.settrace` follows only
functions of these packages, and none of which every line is known.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_TOOL = 3


class Coverage:
    """Lines that ran since they were last taken, of files under the given folders.

    Args:
        folders: Of the packages to watch.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._prefixes = tuple(f"{folder}/" for folder in folders)
        self._new: list[int] = []
        self._left: dict[CodeType, set[int]] = {}

    def start(self) -> None:
        """Watch this thread, or where Python can, all."""
        if sys.version_info >= (3, 12):
            self._monitor()
        else:
            sys.settrace(self._call)

    def take(self) -> list[int]:
        """Numbers of the lines that ran for the first time since; the same in every process."""
        taken, self._new = self._new, []
        return taken

    def _monitor(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        monitoring.use_tool_id(_TOOL, "fuzz")

        def line(code: CodeType, number: int) -> Any:
            if code.co_filename.startswith(self._prefixes):
                self._note(code, number)
            return monitoring.DISABLE

        monitoring.register_callback(_TOOL, monitoring.events.LINE, line)
        monitoring.set_events(_TOOL, monitoring.events.LINE)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            watched = code.co_filename.startswith(self._prefixes)
            left = {number for _, number in dis.findlinestarts(code) if number} if watched else set()
            self._left[code] = left
        return self._line if left else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        left = self._left[frame.f_code]
        if event == "line" and frame.f_lineno in left:
            left.discard(frame.f_lineno)
            self._note(frame.f_code, frame.f_lineno)
        return self._line

    def _note(self, code: CodeType, number: int) -> None:
        name = "/".join(code.co_filename.rsplit("/", 3)[1:])
        self._new.append(_number(f"{name}:{number}"))


def _number(text: str) -> int:
    """The same in every process, unlike `hash`."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 53)
    return value
