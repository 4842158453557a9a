"""`arr-stream serve`: a page in the browser, and an interface for programs."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli import options
from arr_stream.cli.console import INTERRUPTED_EXIT_CODE, Log, Reporter, print_line
from arr_stream.cli.models import fetch_needed
from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from arr_stream.live.publishing import Event, EventHub
    from arr_stream.web.access import Access

TOKEN_VARIABLE = "ARR_STREAM_TOKEN"
_CAMERAS = "cameras"
"""Value of `--allow` that allows every camera of this machine."""
_NEXT_ATTEMPT = re.compile(r"; next attempt in \d+ s$")

_ACCESS = "Access"
"""Panel of the help."""


def serve(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...", help="Cameras, addresses, lavfi:GRAPH, loop:FILE or files, a stream each."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any other than loopback requires a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    token: Annotated[
        str | None,
        options.option(
            "Ask for this token; better in the variable, since others see command lines.",
            _ACCESS,
            envvar=TOKEN_VARIABLE,
            show_envvar=True,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        options.option(
            "The page may open this: an address such as 'rtsp://10.0.0.*', a folder, or `cameras`.",
            _ACCESS,
        ),
    ] = None,
    allow_host: Annotated[list[str] | None, options.option("Further host name of the server.", _ACCESS)] = None,
    query: options.Query = None,
    budget: options.Budget = None,
    when: options.When = None,
    post: options.Post = None,
    model: options.Model = None,
    endpoint: options.Endpoint = None,
    download: options.Download = False,
    preset: Annotated[
        list[str] | None,
        options.option(
            "Settings from a TOML file, or a preset's name; SOURCEs begin with the first, the page offers all.",
            options.RUN,
        ),
    ] = None,
    overrides: options.Overrides = None,
    log: options.LogOption = Log.TEXT,
) -> None:
    """Serve a page and an interface for programs (docs/api.md) until Ctrl-C.

    Only this machine can reach it, unless --host is set. The page may open the sources named here and those that
    --allow adds.
    """
    if token == "":
        # An unset shell variable yields an empty token: the user wants one.
        raise InvalidSetting("--token is empty", remedy="give at least 8 characters, or leave it out")

    from arr_stream.cli.running import stop_on_signals
    from arr_stream.live.alerts import Webhook
    from arr_stream.live.publishing import EventHub
    from arr_stream.live.registry import LiveStreams
    from arr_stream.live.runner import RunnerParts
    from arr_stream.plain_text import model_name
    from arr_stream.relevance.query import parse_text
    from arr_stream.web.access import AllowedSources, make_access
    from arr_stream.web.server import listen, run_server
    from arr_stream.web.serving import Serving
    from arr_stream.web.sessions import SessionFactory
    from arr_stream.web.settings import load_presets

    loaded = load_presets(
        preset or (), overrides or (), options.option_values(budget, model, endpoint, download=download)
    )
    # Models and limits are those of the server, for all streams.
    settings = loaded.by_name[loaded.first] if loaded.first is not None else loaded.settings
    sources, query, allow = sources or [], query or [], allow or []
    folders = [text for text in allow if Path(text).is_dir()]
    allowed = AllowedSources(
        tuple(sources),
        tuple(text for text in allow if text != _CAMERAS and text not in folders),
        cameras=_CAMERAS in allow,
        folders=tuple(map(Path, folders)),
    )
    hub = EventHub()
    rules = options.alert_rules(when, settings, [parse_text(text) for text in query])
    for address in post or ():
        Webhook(address)  # checks it
    most = settings.live.max_streams
    if len(sources) > most:
        raise InvalidSetting(f"{len(sources)} sources and live.max_streams={most}", remedy="raise it")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listen(host, port)))
        door = make_access(host, token=token, names=allow_host or (), port=listener.getsockname()[1])
        fetch_needed(settings)
        sessions = SessionFactory(settings)
        parts = RunnerParts(hub, rules=rules, make_session=sessions.make, post=post or ())
        streams = LiveStreams(loaded.settings, presets=loaded.by_name, parts=parts, most_streams=most)
        stack.callback(streams.close)
        serving = Serving(streams, door, allowed, loaded.descriptions, model_name(sessions.name))
        stop = stack.enter_context(stop_on_signals())
        teller = stack.enter_context(contextlib.closing(_Teller(hub, stop, log)))
        for source in sources:
            streams.add(source, query=query, preset=loaded.first)

        run_server(serving, listener, stop=stop, on_ready=partial(_tell_address, door), on_error=teller.error)
    raise typer.Exit(INTERRUPTED_EXIT_CODE)


def _address(access: Access) -> str:
    """Return the address to open in a browser, with the token if one is needed."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(access.host, access.host)
    host = f"[{host}]" if ":" in host.strip("[]") and not host.startswith("[") else host
    return f"http://{host}:{access.port}/" + (f"?token={access.token}" if access.token is not None else "")


def _tell_address(access: Access) -> None:
    """Print the address to standard output, with `--log quiet` too: the user could not find the page otherwise."""
    print_line(f"open {_address(access)}")
    if access.token is not None:
        print_line(f"programs send the header `Authorization: Bearer {access.token}`")
    if not access.loopback:
        print_line(
            "browsers give their camera only to pages at localhost or over https: put a proxy with TLS in front, "
            "or forward the port"
        )
    sys.stdout.flush()


class _Teller:
    """Reporter of stream events on standard error; with `--log quiet`, only of errors of the server itself.

    It reports no ending streams after `stop` is set, since then the server ends all of them.
    """

    def __init__(self, hub: EventHub, stop: threading.Event, log: Log) -> None:
        from arr_stream.live.publishing import Subscription

        self._stop = stop
        self._reporter = Reporter(log)
        self._told: dict[str, set[tuple[str, str]]] = {}
        self._rung, self._is_closed = threading.Event(), False
        self._subscription = Subscription(self._rung.set, kinds={"notice", "alert", "state"})
        hub.subscribe(self._subscription)
        # A terminal may block or be gone, which must not hold or end the stream that reports.
        self._thread = threading.Thread(target=self._work, name="arr-stream-reporter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report the remaining events, unless the terminal blocks."""
        self._is_closed = True
        self._rung.set()
        self._thread.join(1.0)

    def error(self, error: Exception) -> None:
        """Report an unexpected error of the server."""
        from arr_stream.plain_text import one_line

        text = one_line(f"{type(error).__name__}: {error}")
        Reporter(Log.JSON if self._reporter.log is Log.JSON else Log.TEXT).tell(
            f"arr-stream: internal error while answering a request: {text}", "error", text=text
        )

    def _work(self) -> None:
        is_closed = False
        while not is_closed:
            self._rung.wait()
            self._rung.clear()
            is_closed = self._is_closed  # read before the events, so that none before `close` is left
            # rich ends the program when a pipe is closed.
            with contextlib.suppress(OSError, SystemExit):
                for event in self._subscription.drain():
                    self._tell(event)

    def _tell(self, event: Event) -> None:
        tell, stream = self._reporter.tell, event.get("stream", "")
        if event["type"] == "notice":
            tell(f"{stream}: note: {event['text']}", "notice", stream=stream, text=event["text"])
        elif event["type"] == "alert":
            fields = {key: value for key, value in event.items() if key != "type"}
            tell(f"{stream}: alert: {event['rule']}: {event['message']}", "alert", **fields)
        elif event["type"] == "state":
            status = event["status"]
            about = {key: status[key] for key in ("source", "state", "message")}
            if self._is_new(stream, status["state"], status["message"] or ""):
                why = f": {status['message']}" if status["message"] else ""
                tell(f"{stream} ({status['source']}): {status['state']}{why}", "state", stream=stream, **about)

    def _is_new(self, stream: str, state: str, message: str) -> bool:
        """Return True if no similar message was printed since the last frame arrived: retries repeat theirs."""
        if self._stop.is_set() and state == "ended":
            return False
        told = self._told.setdefault(stream, set())
        entry = state, _NEXT_ATTEMPT.sub("", message)
        if state in ("live", "paused", "ended"):
            new = told != {entry}
            told.clear()
        else:
            new = entry not in told
        told.add(entry)
        return new
