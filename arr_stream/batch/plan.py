"""The plan of a batch: the given files compared with the content of the output folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from arr_stream.batch.folder import DONE, Layout, read_journal
from arr_stream.batch.inputs import assign_names, identity
from arr_stream.batch.job import Done, Job, JobOptions, difference, options_digest, public_options
from arr_stream.errors import ArrStreamError, BatchDiffers
from arr_stream.plain_text import redact_url

State = Literal["new", "done", "gone", "changed", "differs"]
"""State of a file: never done; done; done, source gone; done before its source changed; done with other options."""


@dataclass(frozen=True, slots=True)
class FileState:
    """File with its earlier result, None without one."""

    job: Job
    state: State
    done: Done | None = None

    @property
    def to_do(self) -> bool:
        return self.state not in ("done", "gone")


@dataclass(frozen=True, slots=True)
class Plan:
    """Batch before it begins.

    Args:
        layout: Layout of the output folder.
        options: The options.
        public: The options as the journal records them.
        recorded: The newest options in the journal, a line of type `batch`; None without one.
        files: Every file, in the order of the inputs.
    """

    layout: Layout
    options: JobOptions
    public: Mapping[str, Any]
    recorded: Mapping[str, Any] | None
    files: tuple[FileState, ...]

    @property
    def digest(self) -> str:
        return options_digest(self.public)

    @property
    def to_do(self) -> list[Job]:
        return [file.job for file in self.files if file.to_do]

    @property
    def kept(self) -> list[Done]:
        """Results of files that need not be done again."""
        return [file.done for file in self.files if file.done is not None and not file.to_do]

    @property
    def notices(self) -> Iterator[str]:
        """Notices for the user, one line each."""
        for file in self.files:
            source = redact_url(file.job.source)
            if file.state == "changed":
                yield f"{source}: changed since it was done, and is done again"
            elif file.state == "gone":
                yield f"{source}: can no longer be read; its results are kept"


def make_plan(sources: Sequence[str], options: JobOptions, *, force: bool = False) -> Plan:
    """Compare the sources with the output folder; write nothing.

    Args:
        sources: From `inputs.expand`.
        options: Options for every file.
        force: Continue even if the settings differ, and redo files that were done with other settings.

    Raises:
        BatchDiffers: The folder holds a batch with other settings, or foreign files.
    """
    layout, public = Layout(Path(options.folder)), public_options(options)
    recorded = recorded_options(layout, public, force=force)
    earlier = {path.parent.name: Done.read(path) for path in layout.videos.glob(f"*/{DONE}")}
    names = assign_names(sources, {name: "" if done is None else done.source for name, done in earlier.items()})
    digest = options_digest(public)
    jobs = [Job(index, source, names[source]) for index, source in enumerate(sources)]
    files = tuple(_state(job, earlier.get(job.name), digest, options.storage) for job in jobs)
    return Plan(layout, options, public, recorded, files)


def recorded_options(layout: Layout, public: Mapping[str, Any], *, force: bool = False) -> Mapping[str, Any] | None:
    """Return the newest line of type `batch` in the journal; None without one.

    Raises:
        BatchDiffers: The batch in the folder cannot be resumed; see `make_plan`.
    """
    lines = [line for line in read_journal(layout.manifest) if line.get("type") == "batch"]
    recorded = lines[-1] if lines else None
    if recorded is not None and not isinstance(recorded.get("options"), dict):
        raise BatchDiffers(f"{layout.manifest}: not the journal of a batch", remedy="choose another folder")
    if force:
        return recorded
    if recorded is None:
        foreign = (layout.manifest, layout.summary, layout.videos, layout.errors)
        if (found := next(filter(_has_content, foreign), None)) is not None:
            raise BatchDiffers(
                f"{found}: already exists, and no batch wrote it", remedy="choose another folder, or --force to use it"
            )
    elif options_digest(recorded["options"]) != options_digest(public) and any(layout.videos.glob(f"*/{DONE}")):
        raise BatchDiffers(
            f"{layout.folder}: holds a batch with other settings: {difference(recorded['options'], public)}",
            remedy="choose another folder, or --force to do its files again",
        )
    return recorded


def _has_content(path: Path) -> bool:
    """Return whether the path is a file or a folder that is not empty."""
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def _state(job: Job, done: Done | None, digest: str, storage: Mapping[str, Any]) -> FileState:
    if done is None or done.source != redact_url(job.source):
        return FileState(job, "new")
    if done.options != digest:
        return FileState(job, "differs", done)
    try:
        now = identity(job.source, storage)
    except (OSError, ArrStreamError):
        return FileState(job, "gone", done)
    return FileState(job, "done" if done.fits(job.source, digest, now) else "changed", done)
