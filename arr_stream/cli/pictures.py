"""Pictures that commands draw of what they measured: checked before measuring, whole or not there at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from arr_stream.cli.console import err
from arr_stream.errors import OutputUnwritable

_UNUSUAL = ("pgf", "raw", "rgba")
"""What matplotlib lists too, and nobody looks at: code that needs a LaTeX, and pixels without a header."""


def check_picture(path: Path | None, *, force: bool) -> None:
    """Say at once, before anything is measured, what cannot be drawn; nothing is created yet.

    Raises:
        OutputExists: The file is there and `force` is not set.
        OutputUnwritable: An ending that matplotlib does not write, a folder, or a place that cannot be written to.
    """
    if path is None:
        return

    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from arr_stream.files import prepare_output

    known = sorted(set(FigureCanvasAgg.get_supported_filetypes()) - set(_UNUSUAL))
    if not path.is_dir() and path.suffix.lower().removeprefix(".") not in known:
        raise OutputUnwritable(
            f"{path}: {f'no picture ends with {path.suffix}' if path.suffix else 'its name says no kind of picture'}",
            remedy=f"end it with .png, or one of {', '.join(known)}",
        )
    prepare_output(path, force)


def write_picture(path: Path | None, draw: Callable[[Path], None], *, force: bool) -> None:
    """Draw under a partial name, and give the file its own when it is whole.

    Args:
        path: As it was checked; None where no picture is wanted.
        draw: Writes the file that it is given.
        force: Replacing what is there is wanted.

    Raises:
        OutputError: It could not be written.
    """
    if path is None:
        return

    from arr_stream.files import make_parent, partial_path, publish, writing

    make_parent(path)
    partial = partial_path(path)
    try:
        with writing(path):
            draw(partial)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    publish(path, force=force)
    err.print(f"wrote {path}", soft_wrap=True, markup=False)
