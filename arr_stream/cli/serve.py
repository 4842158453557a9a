"""`arr-stream serve`: a page in the browser, and an interface for programs."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli import options
from arr_stream.cli.console import INTERRUPTED_EXIT_CODE, err, out
from arr_stream.cli.models import fetch_needed
from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arr_stream.live.events import Event, EventHub
    from arr_stream.web.access import Access

_WHO, _ALERTS, _MODEL = "Who may do what", "Alerts", "Which model"
TOKEN_VARIABLE = "ARR_STREAM_TOKEN"
_NEXT_ATTEMPT = re.compile(r"; next attempt in \d+ s$")


def serve(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...", help="Cameras, addresses, lavfi:GRAPH, loop:FILE or files, a stream each."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback asks for a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes one that is free.")] = 8080,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            show_envvar=True,
            help="Ask for this token; better given by the variable, since others see command lines.",
            rich_help_panel=_WHO,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Addresses that the page may open, such as 'rtsp://10.0.0.*'.", rich_help_panel=_WHO),
    ] = None,
    allow_cameras: Annotated[
        bool, typer.Option("--allow-cameras", help="The page may open this machine's cameras.", rich_help_panel=_WHO)
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Take no camera or screen of a browser.", rich_help_panel=_WHO)
    ] = False,
    folder: Annotated[
        list[Path] | None, typer.Option(help="The page may open files below this folder.", rich_help_panel=_WHO)
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name that the server is reached by.", rich_help_panel=_WHO)
    ] = None,
    max_streams: Annotated[int, typer.Option(min=1, max=64, help="Most streams.", rich_help_panel=_WHO)] = 8,
    query: Annotated[
        list[str] | None,
        typer.Option("--query", "-q", help="What to look for; may be repeated.", rich_help_panel=options.LOOK),
    ] = None,
    when: Annotated[
        list[str] | None,
        typer.Option(help='Alert when this holds, such as "relevance > 0.6 for 2s".', rich_help_panel=_ALERTS),
    ] = None,
    before: Annotated[
        float, typer.Option(min=0, max=60, help="Seconds of a clip before the alert.", rich_help_panel=_ALERTS)
    ] = 3.0,
    after: Annotated[
        float, typer.Option(min=0, max=300, help="Seconds of a clip after the alert.", rich_help_panel=_ALERTS)
    ] = 3.0,
    clips: Annotated[Path | None, typer.Option(help="Folder for clips of alerts.", rich_help_panel=_ALERTS)] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(help="Command to run at an alert; {message} and others are filled in.", rich_help_panel=_ALERTS),
    ] = None,
    post: Annotated[
        list[str] | None, typer.Option(help="Address to POST alerts to, as JSON.", rich_help_panel=_ALERTS)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Qwen3-VL: a hub name or a folder; with --endpoint its name there.", rich_help_panel=_MODEL),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="An OpenAI-compatible server, such as http://127.0.0.1:8000/v1.", rich_help_panel=_MODEL),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            help="Settings from a TOML file, or a preset's name; streams begin with the first, the page offers all.",
            rich_help_panel=options.RUN,
        ),
    ] = None,
    overrides: options.Overrides = None,
    clip_model: options.ClipModel = None,
    download: options.Download = False,
    quiet: options.Quiet = False,
    log_json: options.LogJson = False,
) -> None:
    """Serve a page and an interface for programs (docs/live_api.md) until Ctrl-C.

    Only this machine can reach it, unless --host says otherwise. The page may open the sources that are named here,
    and what --allow, --allow-cameras and --folder add.
    """
    _check_alerts(when, clips, run, post)
    if token == "":
        # As from a shell's variable that is not set: whoever writes this wants one.
        raise InvalidSetting("--token is empty", remedy="give at least 8 characters, or leave it out")
    over = {
        "vlm.model": model,
        "vlm.endpoint": endpoint,
        "models.download": download or None,
        "keyframes.embeddings": "clip" if clip_model is not None else None,
        "clip.model": clip_model,
    }
    given = {key: value for key, value in over.items() if value is not None}
    if model is not None or endpoint is not None:
        # The model's memory knows better than the choice of cells what it holds; see `without_skipping`.
        given["selection.novelty"] = "mark"

    from arr_stream.answers import model_name
    from arr_stream.cli.live_alerts import check_answerable
    from arr_stream.live.events import EventHub
    from arr_stream.live.runner import RunnerParts
    from arr_stream.live.streams import LiveStreams
    from arr_stream.run import stop_on_signals
    from arr_stream.web.access import make_access, make_allowed
    from arr_stream.web.observers import AlertPlan, Observer
    from arr_stream.web.server import listen, run_server
    from arr_stream.web.serving import Serving
    from arr_stream.web.settings import load_presets

    presets = load_presets(preset or (), overrides or (), given)
    settings = presets.settings
    allowed = make_allowed(
        sources or (), patterns=allow or (), cameras=allow_cameras, browser=not no_browser, folders=folder or ()
    )
    plan = AlertPlan(tuple(when or ()), before, after, clips, tuple(run or ()), tuple(post or ()))
    hub = EventHub()
    observer = Observer(hub, plan)
    make_access(host, token=token, names=allow_host or ())
    if len(sources or ()) > max_streams:
        raise InvalidSetting(f"{len(sources or ())} sources and --max-streams {max_streams}", remedy="raise it")
    if not settings.vlm.model and not settings.vlm.endpoint:
        check_answerable(when, remedy="give --model or --endpoint as well")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listen(host, port)))
        access = make_access(host, token=token, names=allow_host or (), port=listener.getsockname()[1])
        fetch_needed(settings)
        viewers = None
        if settings.vlm.model or settings.vlm.endpoint:
            from arr_stream.web.viewers import Viewers

            viewers = Viewers(settings)
        parts = RunnerParts(
            hub,
            make_viewer=viewers.make if viewers is not None else None,
            make_consumers=observer.consumers,
            on_error=observer.failed,
        )
        streams = LiveStreams(settings, presets=presets.by_name, parts=parts, most_streams=max_streams)
        stack.callback(streams.close)
        name = model_name(viewers.name) if viewers is not None else None
        serving = Serving(streams, access, allowed, observer, presets.descriptions, name)
        stop = stack.enter_context(stop_on_signals())
        teller = _Teller(hub, stop, quiet=quiet, log_json=log_json)
        stack.enter_context(teller.telling())
        for source in sources or ():
            streams.add(source, query=query or (), preset=presets.first)

        def ready() -> None:
            _tell_address(access, browser_camera=allowed.browser)
            if open_page:
                # Without the token, which all users of this machine could read in the list of processes; the page asks.
                webbrowser.open(_address(access).partition("?")[0])

        run_server(serving, listener, stop=stop, on_ready=ready, on_error=teller.error)
    raise typer.Exit(INTERRUPTED_EXIT_CODE)


def _check_alerts(
    when: Sequence[str] | None, clips: Path | None, run: Sequence[str] | None, post: Sequence[str] | None
) -> None:
    given = [name for name, value in (("--clips", clips), ("--run", run), ("--post", post)) if value]
    if given and not when:
        raise InvalidSetting(f"{', '.join(given)} without --when", remedy='say when: --when "relevance > 0.6 for 2s"')
    if clips is not None:
        from arr_stream.files import check_folder

        check_folder(clips)


def _address(access: Access) -> str:
    """What to open in a browser, with the token where one is needed."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(access.host, access.host)
    host = f"[{host}]" if ":" in host.strip("[]") and not host.startswith("[") else host
    return f"http://{host}:{access.port}/" + (f"?token={access.token}" if access.token is not None else "")


def _tell_address(access: Access, *, browser_camera: bool) -> None:
    """On standard output, where it is asked for quiet too: nobody could find the page otherwise."""
    out.print(f"open {_address(access)}", soft_wrap=True, markup=False)
    if access.token is not None:
        out.print(f"programs send the header `Authorization: Bearer {access.token}`", soft_wrap=True, markup=False)
    if not access.loopback and browser_camera:
        out.print(
            "browsers give their camera only to pages at localhost or over https: put a proxy with TLS in front, "
            "or forward the port",
            soft_wrap=True,
            markup=False,
        )
    sys.stdout.flush()


class _Teller:
    """Tells on standard error what happens to the streams.

    Args:
        hub: Where events come from.
        stop: Set when the server is to end; that streams end with it needs no telling.
        quiet: Only errors of the server itself.
        log_json: As JSON lines.
    """

    def __init__(self, hub: EventHub, stop: threading.Event, *, quiet: bool, log_json: bool) -> None:
        from arr_stream.live.events import Subscription

        self._hub = hub
        self._stop = stop
        self._quiet = quiet
        self._log_json = log_json
        self._told: dict[str, set[tuple[str, str | None]]] = {}
        self._ended = False
        self._rung = threading.Event()
        self._subscription = Subscription(self._rung.set, kinds={"notice", "alert", "state"})
        self._thread = threading.Thread(target=self._work, name="arr-stream-teller", daemon=True)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Until the end of the block, and all that was heard by then."""
        if self._quiet:
            yield
            return
        self._hub.subscribe(self._subscription)
        self._thread.start()
        try:
            yield
        finally:
            self._hub.unsubscribe(self._subscription)
            self._ended = True
            self._rung.set()
            self._thread.join(2.0)

    def error(self, error: Exception) -> None:
        """An error of the server that nobody expected."""
        from arr_stream.plain_text import redact_url

        text = redact_url(" ".join(f"{type(error).__name__}: {error}".split()))
        self._say(f"arr-stream: internal error while answering a request: {text}", event="error", text=text)

    def _work(self) -> None:
        while not self._ended:
            self._rung.wait()
            self._rung.clear()
            for event in self._subscription.take():
                self._tell(event)

    def _tell(self, event: Event) -> None:
        stream = event.get("stream", "")
        if event["type"] == "notice":
            self._say(f"{stream}: note: {event['text']}", event="notice", stream=stream, text=event["text"])
        elif event["type"] == "alert":
            clip = f", clip {event['clip']}" if event["clip"] else ""
            self._say(f"{stream}: alert: {event['message']}{clip}", **{**event, "event": "alert"})
        elif event["type"] == "state":
            status = event["status"]
            state, message = status["state"], status["message"]
            if self._is_new(stream, state, message):
                why = f": {message}" if message else ""
                self._say(
                    f"{stream} ({status['source']}): {state}{why}",
                    event="state",
                    stream=stream,
                    source=status["source"],
                    state=state,
                    message=message,
                )

    def _is_new(self, stream: str, state: str, message: str | None) -> bool:
        """Whether nothing like it was told since pictures last came: attempts are many, and all alike."""
        if self._stop.is_set() and state == "ended":
            return False
        told = self._told.setdefault(stream, set())
        entry = state, None if message is None else _NEXT_ATTEMPT.sub("", message)
        if state in ("live", "paused", "ended"):
            new = told != {entry}
            told.clear()
        else:
            new = entry not in told
        told.add(entry)
        return new

    def _say(self, line: str, **fields: object) -> None:
        if self._log_json:
            sys.stderr.write(json.dumps({"time": round(time.time(), 3), **fields}) + "\n")
            sys.stderr.flush()
        else:
            err.print(line, soft_wrap=True, markup=False)
