"""A real browser that opens the page, and scripts in it that note when each picture was shown."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arr_stream.errors import BackendUnavailable, MeasurementFailed
from benchmarks.live.scene import READ_SCRIPT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_MS = 60_000
_SLOWEST_MS = 100
"""A picture, on a machine with other things to do."""

ENVIRONMENT = "ARR_STREAM_CHROMIUM"

CAMERA_ARGUMENTS = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream=fps=30")
"""A fake camera that runs at 30 fps and needs no consent."""

# The clock is the system's, as the server's is. It tells whole milliseconds, rounded down: one is added.
WATCH_SCRIPT = (
    READ_SCRIPT
    + """
window.arrShown = [];
window.arrFirst_ms = null;
window.addEventListener("arr-picture", ({detail}) => {
  window.arrFirst_ms ??= performance.now();
  const card = document.querySelector(`[data-testid=stream-card][data-stream-id="${detail.stream}"]`);
  const canvas = card.querySelector("[data-testid=video-canvas]");
  const number = window.arrReadCounter(canvas);
  window.arrShown.push([detail.stream, number, Date.now() + 1, detail.captured_unix]);
});
"""
)
"""Notes stream, number in the picture, time at which it stood on the canvas, and the capture that the server tells."""

CAMERA_SCRIPT = """
(() => {
  const canvas = new OffscreenCanvas(960, 540), ground = canvas.getContext("2d", {alpha: false});
  for (let size = 8; size <= 512; size *= 2) {
    const noise = new OffscreenCanvas(size, size), context = noise.getContext("2d");
    const image = context.createImageData(size, size);
    for (let k = 0; k < image.data.length; k += 1) image.data[k] = k % 4 === 3 ? 255 : 256 * Math.random();
    context.putImageData(image, 0, 0);
    ground.globalAlpha = size === 8 ? 1 : 0.35;
    ground.drawImage(noise, 0, 0, canvas.width, canvas.height);
  }
  const capture = () => {
    const seen = document.createElement("canvas");
    [seen.width, seen.height] = [640, 360];
    const context = seen.getContext("2d", {alpha: false});
    const stream = seen.captureStream(0), [track] = stream.getVideoTracks();
    const paint = () => {
      const seconds = performance.now() / 1000;
      context.drawImage(canvas, -160 - 100 * Math.sin(seconds / 2), -90 - 60 * Math.sin(seconds / 3));
      context.fillStyle = "#d33";
      context.beginPath();
      context.arc(320 + 250 * Math.sin(seconds), 180 + 100 * Math.cos(1.3 * seconds), 48, 0, 7);
      context.fill();
      window.arrPaintCounter(context, Date.now() & 0xffff);
      track.requestFrame();
    };
    paint();
    const timer = setInterval(paint, 1000 / 30);
    const stop = track.stop.bind(track);
    track.stop = () => { clearInterval(timer); stop(); };
    return stream;
  };
  navigator.mediaDevices.getUserMedia = async () => capture();
})();
"""
"""In place of the camera: 640x360 at 30 fps, with the time in milliseconds as the number in the picture."""


@dataclass(frozen=True, slots=True)
class ShownPicture:
    """A picture that stood on the page.

    Args:
        stream: Its stream's id.
        number: The number read from the canvas; None where it could not be read.
        shown_ms: When, in milliseconds since 1970.
        captured_unix: The server's word for when it was captured.
    """

    stream: str
    number: int | None
    shown_ms: float
    captured_unix: float


def find_chromium() -> str:
    """The program of a Chromium or Chrome on this machine; ARR_STREAM_CHROMIUM names another.

    Raises:
        BackendUnavailable: There is none.
    """
    named = os.environ.get(ENVIRONMENT)
    for name in (named,) if named else NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    raise BackendUnavailable(
        f"no browser: none of {named or ', '.join(NAMES)} is a program here",
        remedy=f"install Chromium, or name its program in {ENVIRONMENT}",
    )


@contextmanager
def chromium(arguments: Sequence[str] = ()) -> Iterator[Browser]:
    """A Chromium without a window; ends with the context.

    Raises:
        BackendUnavailable: Chromium or the package playwright is missing, or it does not start.
    """
    program = find_chromium()
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError as exc:
        raise BackendUnavailable("the package playwright is missing", remedy="pip install playwright") from exc
    # Chromium's sandbox refuses to run as root, as in containers; the only pages opened are our own.
    rooted = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program, args=[*rooted, *arguments])
        except Error as exc:
            first_line = exc.message.partition("\n")[0]
            raise BackendUnavailable(f"{program}: {first_line}", remedy="see whether it starts by itself") from exc
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched_page(browser: Browser, address: str, *, scripts: Sequence[str] = ()) -> Iterator[Page]:
    """The page, opened in a context of its own, with `WATCH_SCRIPT` and further scripts in it from the beginning.

    Raises:
        MeasurementFailed: Something on the page did not happen that was waited for.
    """
    from playwright.sync_api import Error

    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        for script in (WATCH_SCRIPT, *scripts):
            page.add_init_script(script)
        page.goto(address, wait_until="commit")
        yield page
    except Error as exc:
        raise MeasurementFailed(f"the page: {exc.message}") from exc
    finally:
        context.close()


def take_shown(page: Page) -> list[ShownPicture]:
    """Return the pictures shown since the last call."""
    return [ShownPicture(*row) for row in page.evaluate("window.arrShown.splice(0)")]


def wait_for_pictures(page: Page, count: int, *, stream: str | None = None) -> None:
    """Wait until so many pictures of a stream, or of any, stand in the page's list."""
    condition = "([id, count]) => arrShown.filter(([stream]) => id === null || stream === id).length >= count"
    page.wait_for_function(condition, arg=[stream, count], timeout=PATIENCE_MS + _SLOWEST_MS * count)
