"""All errors that arr-stream raises deliberately.

They form one tree; each class has its own exit code, so that scripts can distinguish causes:

    ArrStreamError                       1
    +-- SourceError
    |   +-- SourceNotFound              10   no such file or folder
    |   +-- NotAMediaFile               11   FFmpeg cannot open it
    |   +-- NoVideoStream               12   audio only, or no stream of that number
    |   +-- NoFrames                    13   opens, but not one frame decodes
    |   +-- NoImages                    14   a folder or glob without pictures
    |   +-- SourceDamaged               15   frames are lost or unreliable, or the end is missing; the rest is kept
    |   +-- SourceTooLarge              16   more pixels a frame than the limit
    |   +-- NothingInRange              18   --start and --end leave no frame
    |   +-- SourceChanged               87   not the source of the records
    |   +-- LiveSourceError
    |       +-- CameraUnavailable       90   no such camera, in use by another program, access denied, or unplugged
    |       +-- ConnectionFailed        94   unknown host, refused, unreachable, or broken off
    |       +-- AuthenticationFailed    95   wrong or missing user or password
    |       +-- StreamNotFound          96   the server has no such stream
    |       +-- StreamSilent            97   connected, but no data arrives
    +-- OutputError
    |   +-- OutputExists                20
    |   +-- OutputUnwritable            21
    |   +-- DiskFull                    22
    |   +-- EncodingFailed              23
    +-- QueryError
    |   +-- EmptyQuery                  30
    |   +-- RegionOutsideFrame          31
    |   +-- QueryUnreadable             32   a file of a query: example picture or gaze
    +-- BudgetError                     40
    +-- NothingChosen                   41   no cell was chosen, and a model needs at least one
    +-- SettingsError
    |   +-- UnknownSetting              50
    |   +-- InvalidSetting              51
    |   +-- PresetNotFound              52
    +-- BackendUnavailable              60   a package or weights are missing
    +-- KeyframeFailed                  61   generation raised, in step
    +-- WeightsInvalid                  62   damaged, of another model, with a wrong hash, or with code in them
    +-- FetchFailed                     63   weights could not be downloaded
    +-- ModelUnsupported                64   not a model, of another architecture, or for another transformers
    +-- ModelTooLarge                   65   needs more memory than there is
    +-- ContextExceeded                 66   more cells or a longer question than the model's context holds
    +-- ServerFailed                    67   a model's server is down, slow, or sends invalid answers
    +-- ConsumerFailed                  70
    +-- DisplayUnavailable              71   no display, or nothing to open a window with
    +-- ListenFailed                    72   the port is in use, or the address is not of this machine
    +-- EvaluationDataError             80
    |   +-- EvaluationIncomplete        82   some of the data was skipped; the rest is done
    +-- MeasurementFailed               81   a benchmark's operation failed
    +-- NoGain                          83   tuned weights are not reliably better on held-out data; no preset written
    +-- NotReplayable                   85   the records lack data for a replay
    +-- RecordsDiffer                   86   the replay gave another result
    +-- BatchError
    |   +-- BatchIncomplete            100   some files of a batch failed; the others are done
    |   +-- BatchDiffers               101   the folder holds a batch with other settings, or something else
    |   +-- BatchBusy                  102   another process works in the folder
    |   +-- WorkerLost                 103   a worker ended by itself, again and again

The command line ends with 2 after a usage error (its parser's convention) and 130 after Ctrl-C.
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

    def rename(self, setting: str, option: str) -> None:
        """Replace the name of a setting, or `setting=`, by that of the option that the user typed."""
        remedy = self.remedy and self.remedy.replace(setting, option)
        message = self.message.replace(f"{setting}=", f"{option} ").replace(setting, option)
        ArrStreamError.__init__(self, message, remedy=remedy)


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
    exit_code = 10


class NotAMediaFile(SourceError):
    exit_code = 11


class NoVideoStream(SourceError):
    exit_code = 12


class NoFrames(SourceError):
    exit_code = 13


class NoImages(SourceError):
    exit_code = 14


class SourceDamaged(SourceError):
    """Error of a source with lost or unreliable frames, or without its end; raised after all that could be decoded.

    Attributes:
        frames_read: Number of frames delivered.
    """

    exit_code = 15

    def __init__(self, message: str, *, frames_read: int, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.frames_read = frames_read


class SourceTooLarge(SourceError):
    exit_code = 16


class NothingInRange(SourceError):
    exit_code = 18


class SourceChanged(SourceError):
    exit_code = 87


class LiveSourceError(SourceError):
    """Error of a live source that cannot be opened, or has stopped.

    Attributes:
        permanent: A retry without a change is useless or harmful (a wrong password locks accounts).
    """

    permanent: ClassVar[bool] = False


class CameraUnavailable(LiveSourceError):
    exit_code = 90


class ConnectionFailed(LiveSourceError):
    exit_code = 94


class AuthenticationFailed(LiveSourceError):
    exit_code = 95
    permanent = True


class StreamNotFound(LiveSourceError):
    exit_code = 96


class StreamSilent(LiveSourceError):
    exit_code = 97


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
    exit_code = 32


class BudgetError(ArrStreamError):
    exit_code = 40


class NothingChosen(ArrStreamError):
    exit_code = 41


class SettingsError(ArrStreamError):
    """Error in a preset or a setting."""


class UnknownSetting(SettingsError):
    exit_code = 50


class InvalidSetting(SettingsError):
    exit_code = 51


class PresetNotFound(SettingsError):
    exit_code = 52


class BackendUnavailable(ArrStreamError):
    exit_code = 60


class KeyframeFailed(ArrStreamError):
    exit_code = 61


class WeightsInvalid(ArrStreamError):
    exit_code = 62


class FetchFailed(ArrStreamError):
    exit_code = 63


class ModelUnsupported(ArrStreamError):
    exit_code = 64


class ModelTooLarge(ArrStreamError):
    exit_code = 65


class ContextExceeded(ArrStreamError):
    exit_code = 66


class ServerFailed(ArrStreamError):
    exit_code = 67


class ConsumerFailed(ArrStreamError):
    exit_code = 70


class DisplayUnavailable(ArrStreamError):
    exit_code = 71


class ListenFailed(ArrStreamError):
    exit_code = 72


class EvaluationDataError(ArrStreamError):
    exit_code = 80


class EvaluationIncomplete(EvaluationDataError):
    exit_code = 82


class MeasurementFailed(ArrStreamError):
    exit_code = 81


class NoGain(ArrStreamError):
    exit_code = 83


class NotReplayable(ArrStreamError):
    exit_code = 85


class RecordsDiffer(ArrStreamError):
    """Error of a replay with another result.

    Attributes:
        frame_index: The first frame that differs; None for the header.
    """

    exit_code = 86

    def __init__(self, message: str, *, frame_index: int | None, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.frame_index = frame_index


class BatchError(ArrStreamError):
    """Error of a batch that cannot begin, or is incomplete."""


class BatchIncomplete(BatchError):
    exit_code = 100


class BatchDiffers(BatchError):
    exit_code = 101


class BatchBusy(BatchError):
    exit_code = 102


class WorkerLost(BatchError):
    exit_code = 103


def error_by_name(name: str, message: str, remedy: str | None) -> ArrStreamError | None:
    """Rebuild an error of this tree from another process; None for other names, and for classes with more fields."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, ArrStreamError) and kind.__init__ is ArrStreamError.__init__:
        return kind(message, remedy=remedy)
    return None
