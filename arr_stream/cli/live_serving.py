"""`--serve` of `webcam` and `stream`: the same source on a page."""

from __future__ import annotations

import json
import os

from arr_stream.cli.live_options import LiveOptions


def serve_live(options: LiveOptions) -> None:
    """Hand a source over to `serve`, as if that had been called with it."""
    from arr_stream.cli.serve import TOKEN_VARIABLE, serve

    # As TOML values, which JSON's texts and numbers are too.
    chosen = [f"{key}={json.dumps(value)}" for key, value in options.chosen.items()]
    serve(
        [options.source],
        port=8080 if options.port is None else options.port,
        token=os.environ.get(TOKEN_VARIABLE) or None,
        query=options.query,
        when=options.when,
        before=options.before,
        after=options.after,
        clips=options.clips,
        run=None if options.run is None else [options.run],
        post=None if options.post is None else [options.post],
        clip_model=options.clip_model,
        preset=None if options.preset is None else [str(options.preset)],
        overrides=[*(options.overrides or ()), *chosen],
        quiet=options.quiet,
        log_json=options.log_json,
    )
