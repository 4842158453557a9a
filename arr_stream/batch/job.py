"""Messages between a batch and its workers, and the options in a form that can be compared later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from arr_stream.config import Settings, public_settings
from arr_stream.plain_text import redact_url

_ELSEWHERE = {"folder", "storage"}
"""Options about locations, which do not affect the output."""
_PLACES = {("models", "folder"), ("models", "download")}


@dataclass(frozen=True, slots=True)
class Job:
    """One file of a batch.

    Args:
        index: Its place in the order of the inputs.
        source: A local path, or an address that fsspec opens, such as `s3://bucket/clip.mp4`.
        name: Name of its outputs: unique in the batch, and safe as a folder name.
    """

    index: int
    source: str
    name: str


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options for every file.

    Args:
        folder: The output folder, absolute.
        settings: All settings, as `Settings.model_dump(mode="json")`.
        queries: Query texts.
        region: `x,y,w,h` in pixels, and `@SECONDS` if it is not of the first frame.
        example: Path of an example picture.
        video: Write the annotated video.
        report: Write the report.
        start_seconds, end_seconds, max_frames: The frames to process.
        storage: Options for fsspec, such as `endpoint_url`; secrets stay in the environment.
    """

    folder: str
    settings: Mapping[str, Any]
    queries: tuple[str, ...] = ()
    region: str | None = None
    example: str | None = None
    video: bool = False
    report: bool = False
    start_seconds: float | None = None
    end_seconds: float | None = None
    max_frames: int | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Assignment of a file to a worker, for the `number`-th time (from 1)."""

    job: Job
    number: int = 1


@dataclass(frozen=True, slots=True)
class Done:
    """Content of `done.json`, the result of a finished file.

    Args:
        name: As in `Job`.
        source: As in `Job`, without secrets.
        identity: Identity of the source when it was read; see `plan.identity`.
        options: Digest of the options; see `options_digest`.
        digest: SHA-256 of the records without their timings: equal for equal input, settings and versions.
        frames: Number of frames processed.
        seconds: Duration, opening and closing included.
        outputs: Paths relative to the output folder.
        notices: Notices for the user, one line each.
        damaged: Description of the damage in the source; None for a sound one.
        attempt: Number of the attempt.
        version: Version of arr-stream.
    """

    name: str
    source: str
    identity: Mapping[str, Any]
    options: str
    digest: str
    frames: int
    seconds: float
    outputs: tuple[str, ...]
    notices: tuple[str, ...] = ()
    damaged: str | None = None
    attempt: int = 1
    version: str = ""

    @classmethod
    def read(cls, path: Path) -> Done | None:
        """Read `done.json`; None if it is missing, incomplete or has fields of other types."""
        try:
            # pydantic's own parser refuses names that are not UTF-8.
            return TypeAdapter(cls).validate_python(json.loads(path.read_bytes()))
        except (OSError, ValueError, RecursionError):
            return None

    def fits(self, source: str, options: str, identity: Mapping[str, Any]) -> bool:
        """Return whether another run with these options and this source identity would give the same result."""
        same = self.source == redact_url(source) and self.options == options
        return same and dict(self.identity) == dict(identity)


@dataclass(frozen=True, slots=True)
class JobStarted:
    """Event: a worker has begun on a file."""

    attempt: Attempt
    worker: str


@dataclass(frozen=True, slots=True)
class JobFinished:
    """Event: a file is done and its outputs are committed."""

    attempt: Attempt
    done: Done


@dataclass(frozen=True, slots=True)
class JobFailed:
    """Event: an attempt failed; only its error is left in the output folder.

    Args:
        attempt: The attempt.
        kind: Name of the error's class, such as `NotAMediaFile`, or `WorkerLost`.
        message: One line, without secrets.
        remedy: Advice for the user, "" without any.
        exit_code: Exit code that `arr-stream process` would have.
        retryable: Another attempt may succeed: true for lost workers and for errors of the system.
        again: Another attempt will be made.
    """

    attempt: Attempt
    kind: str
    message: str
    remedy: str = ""
    exit_code: int = 1
    retryable: bool = False
    again: bool = False


Event = JobStarted | JobFinished | JobFailed


def public_options(options: JobOptions) -> dict[str, Any]:
    """Return every option that affects the output, as plain JSON values without secrets; an example by its hash.

    Only settings that differ from the defaults are included, so that a version with more settings gives the same
    digest.
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
    if options.example is not None:
        values["example"] = f"sha256:{_file_hash(Path(options.example))}"
    return values


def options_digest(public: Mapping[str, Any]) -> str:
    """Return the SHA-256 of `public_options`."""
    text = json.dumps(public, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the names of the options that differ between two `public_options`."""
    # Through JSON, in which a tuple is a list.
    old, new = ({**options, **options.get("settings", {})} for options in json.loads(json.dumps([before, now])))
    return ", ".join(key for key in {**old, **new} if key != "settings" and old.get(key) != new.get(key))


def _file_hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        # The worker that loads the file reports the error.
        return "unreadable"
