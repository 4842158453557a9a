"""What is made of the choice: annotated video, patch records, a report.

Loaded piece by piece, so that records can be written and read without OpenCV or FFmpeg.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from arr_stream.consumers.base import Consumer, Outcome, prepare_output, redact_url

if TYPE_CHECKING:
    from arr_stream.consumers.annotate import AnnotatedVideo
    from arr_stream.consumers.beside import Beside
    from arr_stream.consumers.records import (
        AnswerRecord,
        EndRecord,
        FrameRecord,
        Header,
        Records,
        read_answers,
        read_records,
    )
    from arr_stream.consumers.report import Report
    from arr_stream.consumers.views import VIEWS, check_view, render

__all__ = [
    "VIEWS",
    "AnnotatedVideo",
    "AnswerRecord",
    "Beside",
    "Consumer",
    "EndRecord",
    "FrameRecord",
    "Header",
    "Outcome",
    "Records",
    "Report",
    "check_view",
    "prepare_output",
    "read_answers",
    "read_records",
    "redact_url",
    "render",
]

_HOMES = {
    "AnnotatedVideo": "annotate",
    "AnswerRecord": "records",
    "Beside": "beside",
    "EndRecord": "records",
    "FrameRecord": "records",
    "Header": "records",
    "Records": "records",
    "Report": "report",
    "VIEWS": "views",
    "check_view": "views",
    "read_answers": "records",
    "read_records": "records",
    "render": "views",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
