"""All errors that arr-stream raises deliberately, in one tree.

Each class has its own exit code, so that scripts can distinguish causes. The command line also ends with 2 after a
usage error (its parser's convention), and with 130 after Ctrl-C.
"""

from __future__ import annotations

from typing import ClassVar
from unicodedata import category

_LONGEST_LINE, _LONGEST_REMEDY = 500, 250
_ESCAPED = {"Cc", "Cs", "Zl", "Zp"}
_TURNING = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional control characters, which change the order in which the following text is shown."""


class ArrStreamError(Exception):
    """Error with the input, the allowed values and the remedy, in one line.

    Args:
        message: The problem, with the name of the input.
        remedy: Advice for the user; appended to the message after a semicolon.

    Messages quote untrusted names and values. So that they are safe in a terminal and a log, a line has at most 500
    characters, shortened in the middle, and control characters are escaped.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        self.remedy = None if remedy is None else _line(remedy, _LONGEST_REMEDY)
        self.message = _line(message, _LONGEST_LINE - (len(self.remedy) + 2 if self.remedy else 0))
        super().__init__(f"{self.message}; {self.remedy}" if self.remedy else self.message)


def _line(text: str, longest: int) -> str:
    """Return the text as one line without control characters, shortened in the middle."""
    if len(text) > 4 * longest:
        text = f"{text[: 2 * longest]} ... {text[-2 * longest :]}"
    line = "".join(
        letter.encode("unicode_escape").decode() if category(letter) in _ESCAPED or letter in _TURNING else letter
        for letter in " ".join(text.split())
    )
    kept = (longest - 5) // 2
    return line if len(line) <= longest else f"{line[:kept]} ... {line[-kept:]}"


class SourceError(ArrStreamError):
    """Error of an input that cannot be read."""


class SourceNotFound(SourceError):
    exit_code = 10  # no such file or folder


class NotAMediaFile(SourceError):
    exit_code = 11  # FFmpeg cannot open it


class NoVideoStream(SourceError):
    exit_code = 12  # audio only, or no stream of that number


class NoFrames(SourceError):
    exit_code = 13  # opens, but not one frame decodes


class NoImages(SourceError):
    exit_code = 14  # a folder or glob without pictures


class SourceDamaged(SourceError):
    """Error of a source with lost or unreliable frames, or without its end; raised after all that could be decoded."""

    exit_code = 15


class SourceTooLarge(SourceError):
    exit_code = 16  # more pixels a frame than the limit


class NothingInRange(SourceError):
    exit_code = 18  # --start and --end leave no frame


class SourceChanged(SourceError):
    exit_code = 87  # not the source of the records


class LiveSourceError(SourceError):
    """Error of a live source that cannot be opened, or has stopped.

    Attributes:
        permanent: A retry without a change is useless or harmful (a wrong password locks accounts).
    """

    permanent: ClassVar[bool] = False


class CameraUnavailable(LiveSourceError):
    exit_code = 90  # no such camera, in use by another program, access denied, or unplugged


class ConnectionFailed(LiveSourceError):
    exit_code = 94  # unknown host, refused, unreachable, or broken off


class AuthenticationFailed(LiveSourceError):
    exit_code = 95  # wrong or missing user or password
    permanent = True


class StreamNotFound(LiveSourceError):
    exit_code = 96  # the server has no such stream


class StreamSilent(LiveSourceError):
    exit_code = 97  # connected, but no data arrives


class OutputError(ArrStreamError):
    """Error of an output that cannot be written."""


class OutputExists(OutputError):
    exit_code = 20


class OutputUnwritable(OutputError):
    exit_code = 21


class DiskFull(OutputError):
    exit_code = 22


class EncodingFailed(OutputError):
    exit_code = 23


class QueryError(ArrStreamError):
    """Error of a query that is invalid for this input."""


class EmptyQuery(QueryError):
    exit_code = 30


class RegionOutsideFrame(QueryError):
    exit_code = 31


class QueryUnreadable(QueryError):
    exit_code = 32  # a file of a query: example picture or gaze


class NothingChosen(ArrStreamError):
    exit_code = 41  # no cell was chosen, and a model needs at least one


class SettingsError(ArrStreamError):
    """Error in a preset or a setting."""


class BudgetError(SettingsError):
    exit_code = 40


class UnknownSetting(SettingsError):
    exit_code = 50


class InvalidSetting(SettingsError):
    exit_code = 51


class PresetNotFound(SettingsError):
    exit_code = 52


class BackendUnavailable(ArrStreamError):
    exit_code = 60  # a package or weights are missing


class KeyframeFailed(ArrStreamError):
    exit_code = 61  # generation raised, in step


class WeightsInvalid(ArrStreamError):
    exit_code = 62  # damaged, of another model, with a wrong hash, or with code in them


class FetchFailed(ArrStreamError):
    exit_code = 63  # weights could not be downloaded


class ModelUnsupported(ArrStreamError):
    exit_code = 64  # not a model, of another architecture, or for another transformers


class ModelTooLarge(ArrStreamError):
    exit_code = 65  # needs more memory than there is


class ContextExceeded(ArrStreamError):
    exit_code = 66  # more cells or a longer question than the model's context holds


class ServerFailed(ArrStreamError):
    exit_code = 67  # a model's server is down, slow, or sends invalid answers


class ConsumerFailed(ArrStreamError):
    exit_code = 70


class DisplayUnavailable(ArrStreamError):
    exit_code = 71  # no display, or nothing to open a window with


class ListenFailed(ArrStreamError):
    exit_code = 72  # the port is in use, or the address is not of this machine


class EvaluationDataError(ArrStreamError):
    exit_code = 80


class EvaluationIncomplete(EvaluationDataError):
    exit_code = 82  # some of the data was skipped; the rest is done


class MeasurementFailed(ArrStreamError):
    exit_code = 81  # a benchmark's operation failed


class NoGain(ArrStreamError):
    exit_code = 83  # tuned weights are not reliably better on held-out data; no preset written


class NotReplayable(ArrStreamError):
    exit_code = 85  # the records lack data for a replay


class RecordsDiffer(ArrStreamError):
    exit_code = 86  # the replay gave another result


class BatchError(ArrStreamError):
    """Error of a batch that cannot begin, or is incomplete."""


class BatchIncomplete(BatchError):
    exit_code = 100  # some files of a batch failed; the others are done


class BatchDiffers(BatchError):
    exit_code = 101  # the folder holds a batch with other settings, or something else


class BatchBusy(BatchError):
    exit_code = 102  # another process works in the folder


class WorkerLost(BatchError):
    exit_code = 103  # a worker ended by itself, again and again


def error_by_name(name: str, message: str, remedy: str | None) -> ArrStreamError | None:
    """Rebuild an error of this tree from another process; None for other names."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, ArrStreamError):
        return kind(message, remedy=remedy)
    return None
