"""Where a command's frame loop runs: what measures its steps one by one does so on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from arr_stream.config import Settings


def on_cpu(settings: Settings, command: str) -> None:
    """Refuse a loop on a device in a command that would not run it there.

    Args:
        settings: As they were given.
        command: Its name.

    Raises:
        InvalidSetting: `loop.device` is not `cpu`.
    """
    if settings.loop.device != "cpu":
        raise InvalidSetting(
            f"loop.device={settings.loop.device}: {command} runs the frame loop on the CPU",
            remedy="leave loop.device at cpu; `arr-stream bench device` measures a GPU",
        )
