"""`arr-stream serve`: a page in the browser, and an interface for programs."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from arr_stream.cli.console import INTERRUPTED_EXIT_CODE, print_line, say, say_json
from arr_stream.cli.models import fetch_needed
from arr_stream.cli.options import (
    RUN,
    AlertOptions,
    But,
    Group,
    LookOptions,
    ModelOptions,
    SettingsOptions,
    TellOptions,
    given_values,
    grouped,
)
from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arr_stream.live.events import Event, EventHub
    from arr_stream.web.access import Access

TOKEN_VARIABLE = "ARR_STREAM_TOKEN"
_NEXT_ATTEMPT = re.compile(r"; next attempt in \d+ s$")


@dataclass(frozen=True)
class ServerOptions(Group):
    """Options for the address of the server."""

    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback asks for a token.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes one that is free.")] = 8080
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False


@dataclass(frozen=True)
class AccessOptions(Group):
    """Options for access rights."""

    panel: ClassVar = "Who may do what"
    token: Annotated[
        str | None,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            show_envvar=True,
            help="Ask for this token; better given by the variable, since others see command lines.",
        ),
    ] = None
    allow: Annotated[
        list[str] | None, typer.Option(help="Addresses that the page may open, such as 'rtsp://10.0.0.*'.")
    ] = None
    allow_cameras: Annotated[
        bool, typer.Option("--allow-cameras", help="The page may open this machine's cameras.")
    ] = False
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Take no camera or screen of a browser.")] = False
    folder: Annotated[list[Path] | None, typer.Option(help="The page may open files below this folder.")] = None
    allow_host: Annotated[list[str] | None, typer.Option(help="A further name that the server is reached by.")] = None
    max_streams: Annotated[int, typer.Option(min=1, max=64, help="Most streams.")] = 8

    def __post_init__(self) -> None:
        if self.token == "":
            # An unset shell variable yields an empty token: the user wants one.
            raise InvalidSetting("--token is empty", remedy="give at least 8 characters, or leave it out")


@grouped
def serve(
    server: ServerOptions,
    access: AccessOptions,
    look: Annotated[LookOptions, But("region", "region_at", "mask", "example", "gaze")],
    alerts: Annotated[
        AlertOptions,
        But(
            when='Alert when this holds, such as "relevance > 0.6 for 2s".',
            post="Address to POST alerts to, as JSON.",
        ),
    ],
    model: ModelOptions,
    chosen: Annotated[SettingsOptions, But("preset", "sam_checkpoint")],
    tell: TellOptions,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...", help="Cameras, addresses, lavfi:GRAPH, loop:FILE or files, a stream each."
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            help="Settings from a TOML file, or a preset's name; SOURCEs begin with the first, the page offers all.",
            rich_help_panel=RUN,
        ),
    ] = None,
) -> None:
    """Serve a page and an interface for programs (docs/api.md) until Ctrl-C.

    Only this machine can reach it, unless --host says otherwise. The page may open the sources that are named here,
    and what --allow, --allow-cameras and --folder add.
    """
    serve_sources(
        sources or (),
        server,
        access,
        alerts,
        tell,
        query=look.query or (),
        presets=preset or (),
        overrides=chosen.overrides or (),
        values=given_values(look, model, chosen),
    )


def serve_sources(
    sources: Sequence[str],
    server: ServerOptions,
    access: AccessOptions,
    alerts: AlertOptions,
    tell: TellOptions,
    *,
    query: Sequence[str],
    presets: Sequence[str],
    overrides: Sequence[str],
    values: Mapping[str, object],
) -> None:
    """Serve sources until the user ends it, each in a stream that starts with `query`.

    Streams begin with the first preset; the page offers all of them. `overrides` override the presets, and `values`,
    by dotted key, override both.

    Raises:
        ArrStreamError: The server could not start or run.
        typer.Exit: The server has ended.
    """
    from arr_stream.answers import model_name
    from arr_stream.cli.running import stop_on_signals
    from arr_stream.live.events import EventHub
    from arr_stream.live.runner import RunnerParts
    from arr_stream.live.streams import LiveStreams
    from arr_stream.relevance.query import parse_text
    from arr_stream.web.access import AllowedSources, make_access
    from arr_stream.web.observers import Observer
    from arr_stream.web.server import listen, run_server
    from arr_stream.web.serving import Serving
    from arr_stream.web.settings import load_presets
    from arr_stream.web.viewers import Viewers

    loaded = load_presets(presets, overrides, values)
    settings = loaded.settings
    allowed = AllowedSources(
        tuple(sources),
        tuple(access.allow or ()),
        access.allow_cameras,
        not access.no_browser,
        tuple(access.folder or ()),
    )
    hub = EventHub()
    rules = alerts.rules(settings, [parse_text(text) for text in query])
    observer = Observer(hub, alerts.webhooks)
    names = access.allow_host or ()
    make_access(server.host, token=access.token, names=names)
    if len(sources) > access.max_streams:
        raise InvalidSetting(f"{len(sources)} sources and --max-streams {access.max_streams}", remedy="raise it")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listen(server.host, server.port)))
        door = make_access(server.host, token=access.token, names=names, port=listener.getsockname()[1])
        fetch_needed(settings)
        viewers = Viewers(settings)
        parts = RunnerParts(
            hub,
            rules=rules,
            make_viewer=viewers.make,
            make_consumers=observer.consumers,
            on_error=observer.failed,
        )
        streams = LiveStreams(settings, presets=loaded.by_name, parts=parts, most_streams=access.max_streams)
        stack.callback(streams.close)
        serving = Serving(streams, door, allowed, observer, loaded.descriptions, model_name(viewers.name))
        stop = stack.enter_context(stop_on_signals())
        teller = _Teller(hub, stop, tell)
        stack.enter_context(teller.telling())
        for source in sources:
            streams.add(source, query=query, preset=loaded.first)

        def ready() -> None:
            _tell_address(door, browser_camera=allowed.browser)
            if server.open_page:
                # Without the token, which every user of this machine could read in the process list; the page asks for
                # it. A browser in the foreground returns when it is closed.
                page = _address(door).partition("?")[0]
                threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()

        run_server(serving, listener, stop=stop, on_ready=ready, on_error=teller.error)
    raise typer.Exit(INTERRUPTED_EXIT_CODE)


def _address(access: Access) -> str:
    """Return the address to open in a browser, with the token if one is needed."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(access.host, access.host)
    host = f"[{host}]" if ":" in host.strip("[]") and not host.startswith("[") else host
    return f"http://{host}:{access.port}/" + (f"?token={access.token}" if access.token is not None else "")


def _tell_address(access: Access, *, browser_camera: bool) -> None:
    """Print the address to standard output, with `--quiet` too: the user could not find the page otherwise."""
    print_line(f"open {_address(access)}")
    if access.token is not None:
        print_line(f"programs send the header `Authorization: Bearer {access.token}`")
    if not access.loopback and browser_camera:
        print_line(
            "browsers give their camera only to pages at localhost or over https: put a proxy with TLS in front, "
            "or forward the port"
        )
    sys.stdout.flush()


class _Teller:
    """Reporter of stream events on standard error; with `--quiet`, only of errors of the server itself.

    It reports no ending streams after `stop` is set, since then the server ends all of them.
    """

    def __init__(self, hub: EventHub, stop: threading.Event, tell: TellOptions) -> None:
        from arr_stream.live.events import Subscription

        self._hub = hub
        self._stop = stop
        self._options = tell
        self._told: dict[str, set[tuple[str, str | None]]] = {}
        self._ended = False
        self._rung = threading.Event()
        self._subscription = Subscription(self._rung.set, kinds={"notice", "alert", "state"})
        self._thread = threading.Thread(target=self._work, name="arr-stream-teller", daemon=True)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Report events until the end of the block, including all that arrived by then."""
        if self._options.quiet:
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
        """Report an unexpected error of the server."""
        from arr_stream.plain_text import one_line

        text = one_line(f"{type(error).__name__}: {error}")
        self._say(f"arr-stream: internal error while answering a request: {text}", event="error", text=text)

    def _work(self) -> None:
        ended = False
        while not ended:
            self._rung.wait()
            self._rung.clear()
            # Read before the events: every event from before the end is reported.
            ended = self._ended
            for event in self._subscription.take():
                self._tell(event)

    def _tell(self, event: Event) -> None:
        stream = event.get("stream", "")
        if event["type"] == "notice":
            self._say(f"{stream}: note: {event['text']}", event="notice", stream=stream, text=event["text"])
        elif event["type"] == "alert":
            self._say(f"{stream}: alert: {event['rule']}: {event['message']}", **{**event, "event": "alert"})
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
        """Return True if no similar message was printed since the last frame arrived: retries repeat theirs."""
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
        if self._options.log_json:
            say_json(**fields)
        else:
            say(line)
