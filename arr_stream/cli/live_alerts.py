"""Alerts of `webcam` and `stream`, from the options that were given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arr_stream.cli.live_options import LiveOptions
from arr_stream.draw.annotate import Annotator
from arr_stream.errors import InvalidSetting
from arr_stream.files import check_folder
from arr_stream.live.actions import PostJson, RunCommand
from arr_stream.live.alerts import Action, Alert, Alerts
from arr_stream.live.rules import parse_rule
from arr_stream.live.stream import LiveStream
from arr_stream.patch_set import PatchSet
from arr_stream.run import asked_text
from arr_stream.types import ByteArray, Frame


def check_alerts(options: LiveOptions) -> None:
    """Say at once, before anything is opened, which rule, command, address or folder will not do.

    Raises:
        InvalidSetting, OutputUnwritable: See `arr_stream.errors`.
    """
    for rule in options.when or ():
        parse_rule(rule)
    if options.question is None:
        check_answerable(options.when, remedy="give --question and a model as well")
    if options.clips is not None:
        check_folder(options.clips)
    for action in _actions(options):
        action.close()


def check_answerable(rules: Sequence[str] | None, *, remedy: str) -> None:
    """Refuse rules about answers where nobody will answer: they would wait for ever.

    Raises:
        InvalidSetting: A rule speaks of answers, or is none.
    """
    for rule in rules or ():
        if parse_rule(rule).needs_answers:
            raise InvalidSetting(f"rule {rule!r} waits for answers, and no model is asked", remedy=remedy)


def make_alerts(options: LiveOptions, stream: LiveStream, notice: Callable[[str], None]) -> Alerts:
    """The consumer that looks for what `--when` describes."""
    annotator = Annotator(options.view, dim=stream.settings.video.dim, asked=asked_text(stream))

    def draw(frame: Frame, patches: PatchSet) -> ByteArray:
        annotator.take(patches)
        picture = annotator.picture(frame, patches)
        annotator.finish(picture, patches)
        return picture

    def tell(alert: Alert) -> None:
        clip = f"; clip {alert.clip_path}" if alert.clip_path is not None else ""
        notice(f"alert at {alert.pts_seconds:.1f} s: {alert.rule}: {alert.message}{clip}")

    return Alerts(
        options.when or (),
        stream_name=stream.source.info.name,
        clip_folder=options.clips,
        before_seconds=options.before,
        after_seconds=options.after,
        actions=_actions(options),
        on_alert=tell,
        on_notice=notice,
        draw=draw,
        video=stream.settings.video,
    )


def _actions(options: LiveOptions) -> list[Action]:
    actions: list[Action] = []
    if options.run is not None:
        actions.append(RunCommand.parse(options.run))
    if options.post is not None:
        actions.append(PostJson(options.post))
    return actions
