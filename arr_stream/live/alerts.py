"""Alerts: rules that are checked on every frame of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from arr_stream.consumer import Outcome
from arr_stream.live.rules import RuleWatch, parse_rule
from arr_stream.live.webhook import Alert, Notice, Webhook
from arr_stream.patch_set import PatchSet
from arr_stream.types import Frame


class Alerts:
    """Consumer that checks rules on every frame.

    Args:
        rules: See `arr_stream.live.rules`; the list may be changed while the stream runs.
        stream_name: Name of the stream in the alerts.
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
        """Give the messages that wait some seconds, then end the webhooks' threads."""
        for webhook in self._webhooks:
            webhook.close()

    def _follow_rules(self) -> None:
        rules = tuple(dict.fromkeys(self._rules))
        if rules != tuple(self._watches):
            before = self._watches
            self._watches = {rule: before.get(rule) or RuleWatch(parse_rule(rule)) for rule in rules}
