"""The plan of a batch: the given files compared with the content of the output folder."""

from __future__ import annotations

import contextlib
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from arr_stream import __version__
from arr_stream.batch.inputs import assign_names
from arr_stream.batch.job import Done, Job, JobOptions, difference, options_digest, public_options
from arr_stream.batch.journal import Past, read_past, source_key
from arr_stream.batch.layout import Layout, identity
from arr_stream.errors import ArrStreamError, BatchDiffers
from arr_stream.plain_text import redact_url

_PACKAGES = ("torch", "numpy", "opencv-python-headless", "av", "scikit-image", "onnxruntime", "rapidocr")

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
        past: Content of the journal.
        files: Every file, in the order of the inputs.
    """

    layout: Layout
    options: JobOptions
    public: Mapping[str, Any]
    past: Past
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
    def same_options(self) -> bool:
        """True if the journal's newest options are these."""
        return self.past.options is not None and options_digest(self.past.options) == self.digest

    @property
    def notices(self) -> Iterator[str]:
        """Notices for the user, one line each."""
        for file in self.files:
            source = redact_url(file.job.source)
            if file.state == "changed":
                yield f"{source}: changed since it was done, and is done again"
            elif file.state == "gone":
                yield f"{source}: can no longer be read; its results are kept"
        if self.past.broken:
            yield f"broken lines of the journal are left out ({self.past.broken}); what is done is known without them"
        before, now = self.past.versions, versions()
        changed = [f"{name} {before[name]} is now {now.get(name)}" for name in before if before[name] != now.get(name)]
        if changed:
            yield f"versions changed since the batch began: {', '.join(changed)}; files that are done stay as they are"


def make_plan(sources: Sequence[str], options: JobOptions, *, force: bool = False) -> Plan:
    """Compare the sources with the output folder; write nothing.

    Args:
        sources: From `inputs.expand`.
        options: Options for every file.
        force: Continue even if the settings differ or lines of the journal are broken, and redo files that were done
            with other settings.

    Raises:
        BatchDiffers: The folder holds a batch with other settings, or foreign files.
    """
    layout, public = Layout(Path(options.folder)), public_options(options)
    past = find_past(layout, public, force=force)
    names = assign_names(sources, _known(sources, past))
    jobs = [Job(index, source, names[source]) for index, source in enumerate(sources)]
    digest = options_digest(public)
    files = tuple(_state(job, layout, digest, options.storage) for job in jobs)
    return Plan(layout, options, public, past, files)


def _known(sources: Sequence[str], past: Past) -> dict[str, str]:
    """Return the earlier names of sources; an address with a new signature is the same source."""
    known: dict[str, str] = {}
    used: set[str] = set()
    for source in sources:
        name = past.names.get(source_key(source))
        if name is not None and name not in used:
            known[source] = name
            used.add(name)
    anew = [source for source in sources if source not in known and redact_url(source) != source]
    asked = Counter(redact_url(source) for source in anew)
    alike = past.alike() if anew else {}
    for source in anew:
        names = alike.get(redact_url(source), set()) - used
        # ambiguous: no name is reused
        if asked[redact_url(source)] == len(names) == 1:
            known[source] = names.pop()
            used.add(known[source])
    # Names of sources that are absent this time must not go to others.
    return known | {source: name for source, name in past.names.items() if name not in used}


def find_past(layout: Layout, public: Mapping[str, Any], *, force: bool = False) -> Past:
    """Return the content of the journal if the batch may resume from it.

    Raises:
        BatchDiffers: It may not; see `make_plan`.
    """
    past = read_past(layout.manifest, skip_broken=force)
    if force:
        return past
    if past.options is None:
        strange = next((path for path in layout.own() if path != layout.work and _holds(path)), None)
        if strange is not None:
            raise BatchDiffers(
                f"{strange}: there already, and of no batch", remedy="choose another folder, or --force to write there"
            )
    elif options_digest(past.options) != options_digest(public) and any(layout.videos.glob("*/done.json")):
        raise BatchDiffers(
            f"{layout.folder}: holds a batch with other settings: {difference(past.options, public)}",
            remedy="choose another folder, or --force to do its files again",
        )
    return past


def _holds(path: Path) -> bool:
    """Return whether the path is a file or a folder that is not empty."""
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def _state(job: Job, layout: Layout, digest: str, storage: Mapping[str, Any]) -> FileState:
    done = Done.read(layout.done(job.name))
    if done is None or not done.whole or done.source != redact_url(job.source):
        return FileState(job, "new")
    if done.options != digest:
        return FileState(job, "differs", done)
    try:
        now = identity(job.source, storage)
    except (OSError, ArrStreamError):
        return FileState(job, "gone", done)
    return FileState(job, "done" if done.fits(job.source, digest, now) else "changed", done)


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect the results."""
    found = {"arr-stream": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
