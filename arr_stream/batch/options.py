"""What was asked of a batch, in a form that can be written down and compared with what was asked before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arr_stream.batch.job import JobOptions
from arr_stream.config import Settings, public_settings, setting_keys
from arr_stream.plain_text import redact_url

_ELSEWHERE = {"folder", "storage"}
"""Where things are read from and written to changes nothing about what is written."""
_PLACES = {("models", "folder"), ("models", "download")}


def public_options(options: JobOptions) -> dict[str, Any]:
    """Everything that decides what is written, as plain JSON values without secrets; an example by its hash.

    Of the settings only those that are not the defaults, so that a version that knows more of them asks for the same.
    """
    values = {key: value for key, value in asdict(options).items() if key not in _ELSEWHERE}
    settings, defaults = public_settings(Settings.checked(dict(options.settings))), public_settings(Settings())
    values["settings"] = {
        f"{section}.{key}": value
        for section, keys in settings.items()
        for key, value in keys.items()
        if (section, key) not in _PLACES and value != defaults[section][key]
    }
    values["queries"] = [redact_url(query) for query in options.queries]
    values["formats"] = sorted(set(options.formats))
    if options.example is not None:
        values["example"] = f"sha256:{_file_hash(Path(options.example))}"
    return values


def options_digest(public: Mapping[str, Any]) -> str:
    """SHA-256 of `public_options`."""
    text = json.dumps(public, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In words, where two `public_options` differ: at most three places; "" where they do not."""
    defaults = {key: default for key, (default, _) in setting_keys().items()}
    old, new = _flat(before), _flat(now)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    told = [
        f"{key} was {_short(old.get(key, defaults.get(key)))} and is {_short(new.get(key, defaults.get(key)))}"
        for key in changed[:3]
    ]
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return ", ".join(told) + more


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings beside the other options."""
    options = {key: value for key, value in values.items() if key != "settings"}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()} | dict(
        values.get("settings", {})
    )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _file_hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        # Whoever loads it says what is wrong with it.
        return "unreadable"
