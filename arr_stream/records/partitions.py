"""The folders of a batch's tables, named for readers that take columns from the names of folders."""

from __future__ import annotations

from urllib.parse import quote


def hive_folder(name: str) -> str:
    """The folder in which a table of the video `name` lies.

    What such readers or file systems would stumble over is escaped as in addresses, and they undo that.
    """
    return f"video={''.join(letter if letter.isalnum() else quote(letter, safe='._-') for letter in name)}"
