"""Folder names of a batch's tables, for readers that take columns from the names of folders."""

from __future__ import annotations

from urllib.parse import quote


def hive_folder(name: str) -> str:
    """Return the folder name for the table of the video `name`.

    Characters that such readers or file systems cannot handle are percent-encoded; the readers decode them.
    """
    return f"video={''.join(letter if letter.isalnum() else quote(letter, safe='._-') for letter in name)}"
