"""Alerts: rules that are checked on every frame of a stream, one threshold each, and the webhooks that they go to.

relevance > 0.6 for 2s          the highest score of any query
relevance[1] < 0.1 for 10s      the score of one query, the first being 0
motion > 0.02                   the share of the picture that moves
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from arr_stream.consumer import Outcome
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import PatchSet
from arr_stream.types import Frame

Notice = Callable[[str], None]

LONGEST_RULE = 500
_LONGEST_SECONDS = 86_400
_COOLDOWN_SECONDS = 10.0
_MOVES = 0.1
"""Value of the motion channel from which a place counts as moving. With a still camera, noise alone (standard deviation
of 8 levels at 640x360) stays below it everywhere, and a square of 3.5% of the picture counts as 2% of it at 4 pixels a
frame and as 5% at 8."""
_SHOWN = 200
_GAP_SECONDS = 10.0
"""Longest gap between two frames over which a condition is taken to hold."""

_WAITING = 16
_SEND_SECONDS = 10.0
_END_SECONDS = 3.0
"""Time for the alerts that wait when the stream ends."""

_RULE = re.compile(
    r"""(?P<field>relevance(?:\[(?P<query>\d{1,4})\])?|motion) \s* (?P<sign>[<>]) \s* (?P<limit>\d+\.?\d*|\.\d+)
        (?:\s+for\s+(?P<seconds>\d+\.?\d*|\.\d+)\s*s)?""",
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Condition on the frames of a stream, made by `parse_rule`.

    Args:
        field: `relevance`, `relevance[K]` or `motion`.
        query: K, for the score of one query.
        above: The number must be above `limit`, else below.
        seconds: How long the condition must hold, in the stream's time.
    """

    text: str
    field: str
    query: int | None = None
    above: bool = True
    limit: float = 0.0
    seconds: float = 0.0

    @property
    def needs_relevance(self) -> bool:
        """True if the rule cannot hold while the relevance to every query is 0."""
        return self.field.startswith("relevance") and self.above

    def seen(self, patches: PatchSet) -> str | None:
        """Return the measured value, such as `relevance 0.8`, if the condition holds on a frame, else None."""
        scores = patches.query_scores
        if self.field == "motion":
            value = float((patches.texture.plane("motion") >= _MOVES).mean())
        elif self.query is None:
            value = max(scores, default=0.0)
        elif self.query < len(scores):
            value = scores[self.query]
        else:
            return None
        holds = value > self.limit if self.above else value < self.limit
        return f"{self.field} {value:.3g}" if holds else None


class RuleWatch:
    """A rule over the frames of one stream: fires once when it becomes true, and again only after it was false.

    At least `cooldown_seconds` of the stream's time lie between two alerts. A rule that became true meanwhile and still
    is fires then.
    """

    def __init__(self, rule: Rule, cooldown_seconds: float = _COOLDOWN_SECONDS) -> None:
        self.rule = rule
        self._cooldown_seconds = cooldown_seconds
        self._since: float | None = None
        self._armed = True
        self._fired_seconds = -math.inf
        self._last_seconds = math.inf

    def update(self, patches: PatchSet) -> str | None:
        """Check the next frame; return a line that describes the event if the rule fires, else None."""
        now = patches.pts_seconds
        seen = self.rule.seen(patches)
        step, self._last_seconds = now - self._last_seconds, now
        if seen is None:
            self._since = None
        elif self._since is None or not 0 <= step <= _GAP_SECONDS:
            self._since = now
        # Sums of frame times miss round numbers by a rounding error.
        if self._since is None or now - self._since < self.rule.seconds - 1e-6:
            self._armed = True
            return None
        if not self._armed or 0 <= now - self._fired_seconds < self._cooldown_seconds:
            return None
        self._armed, self._fired_seconds = False, now
        return seen


def parse_rule(text: str) -> Rule:
    """Return the rule that a line of text means; see the module's text for the forms.

    Raises:
        InvalidSetting: The text is no rule, or one that never holds.
    """
    text = " ".join(text.split())
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    found = _RULE.fullmatch(text) if len(text) <= LONGEST_RULE else None
    if found is None:
        raise InvalidSetting(
            f"rule {shown!r} is not valid",
            remedy="write such as 'relevance > 0.6 for 2s', 'relevance[1] < 0.1' or 'motion > 0.02'",
        )
    field, above, limit = found["field"].lower(), found["sign"] == ">", float(found["limit"])
    if limit >= 1 if above else not 0 < limit <= 1:
        raise InvalidSetting(f"rule {shown!r}: {field} is from 0 to 1", remedy="write such as 'relevance > 0.6'")
    seconds = float(found["seconds"] or 0.0)
    if seconds > _LONGEST_SECONDS:
        raise InvalidSetting(f"rule {shown!r}: {seconds:g} s is too long", remedy=f"at most {_LONGEST_SECONDS} s")
    query = None if found["query"] is None else int(found["query"])
    return Rule(text, field, query, above, limit, seconds)


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule that has fired on a frame of a stream; `message` describes the event in one line."""

    rule: str
    message: str
    frame_index: int
    pts_seconds: float
    made_unix: float
    stream: str = ""

    def record(self) -> dict[str, Any]:
        """Return the alert as plain JSON values."""
        return asdict(self) | {"pts_seconds": round(self.pts_seconds, 6), "made_unix": round(self.made_unix, 3)}


class Webhook:
    """Http or https address that receives each alert, as `Alert.record`, by POST from a thread; at most 16 wait.

    Redirects are not followed, and the environment's proxy is not used. User and password in the address are sent as
    basic authentication. Notices name the host alone, since addresses of hooks are secrets.

    Raises:
        InvalidSetting: Another kind of address, or a malformed one.
    """

    def __init__(self, url: str) -> None:
        self._parts = parts = _checked(url)
        self.name = f"POST to {parts.netloc.rpartition('@')[2]}"
        self._headers = {"Content-Type": "application/json", "User-Agent": "arr-stream"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._waiting: queue.SimpleQueue[tuple[Alert, Notice] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def send(self, alert: Alert, notice: Notice) -> None:
        """Queue an alert and return at once; `notice` is called from another thread with a failure."""
        if self._waiting.qsize() >= _WAITING:
            notice(f"{self.name}: alerts come faster than they can be sent; one was dropped")
            return
        self._waiting.put((alert, notice))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="arr-stream-webhook", daemon=True)
            self._thread.start()

    def close(self) -> bool:
        """End after the alerts that wait; return False if that takes more than 3 s."""
        self._waiting.put(None)
        if self._thread is None:
            return True
        self._thread.join(_END_SECONDS)
        return not self._thread.is_alive()

    def _work(self) -> None:
        for alert, notice in iter(self._waiting.get, None):
            if fault := self._post(alert):
                notice(f"{self.name}: {fault}")

    def _post(self, alert: Alert) -> str | None:
        """Send an alert; return the fault, None without one."""
        parts = self._parts
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
        try:
            with contextlib.closing(connect(parts.hostname or "", parts.port, timeout=_SEND_SECONDS)) as connection:
                connection.request("POST", target, json.dumps(alert.record()), self._headers)
                status = connection.getresponse().status
        except (OSError, UnicodeError, http.client.HTTPException) as exc:
            # A host with an empty or too long label is a UnicodeError.
            return str(getattr(exc, "strerror", None) or type(exc).__name__).lower()
        return None if 200 <= status < 300 else f"answered with {status}"


class Alerts:
    """Consumer that checks rules on every frame.

    Args:
        rules: Texts for `parse_rule`; the list may be changed while the stream runs.
        webhooks: Each alert goes to each of them; closed with this consumer.
        on_alert: Called with each alert, in the thread that processes the frames.
        on_notice: Called with each failure of a webhook, in any thread.

    Raises:
        InvalidSetting: A text is no rule.
    """

    def __init__(
        self,
        rules: Sequence[str],
        *,
        stream_name: str = "stream",
        webhooks: Sequence[Webhook] = (),
        on_alert: Callable[[Alert], None] = lambda alert: None,
        on_notice: Notice = lambda line: None,
    ) -> None:
        self._rules = rules
        self._stream_name = stream_name
        self._webhooks = webhooks
        self._on_alert, self._on_notice = on_alert, on_notice
        self._watches: dict[str, RuleWatch] = {}
        self._follow_rules()

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Check the rules on one frame; webhooks send in threads of their own."""
        self._follow_rules()
        for rule, watch in self._watches.items():
            message = watch.update(patches)
            if message is None:
                continue
            alert = Alert(rule, message, frame.index, frame.pts_seconds, time.time(), self._stream_name)
            for webhook in self._webhooks:
                webhook.send(alert, self._on_notice)
            self._on_alert(alert)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """End the webhooks."""
        for webhook in self._webhooks:
            if not webhook.close():
                self._on_notice(f"{webhook.name}: the stream ended before all alerts were sent")

    def _follow_rules(self) -> None:
        rules = tuple(dict.fromkeys(self._rules))
        if rules != tuple(self._watches):
            before = self._watches
            self._watches = {rule: before.get(rule) or RuleWatch(parse_rule(rule)) for rule in rules}


def _checked(url: str) -> SplitResult:
    """Return the parts of an http or https address; raise `InvalidSetting` for any other text."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        whole = parts.hostname and (parts.port or True) and url.isascii() and not re.search(r"[\x00-\x20\x7f]", url)
        if whole and parts.scheme in ("http", "https"):
            return parts
    raise InvalidSetting(
        "alerts cannot be sent there: not an http or https address with a host",
        remedy="write such as http://127.0.0.1:8000/alerts",
    )
