"""What a browser without the token is shown: one page that needs nothing else, since nothing else is given to it."""

from __future__ import annotations

import base64
import hashlib

_STYLE = """
:root { color-scheme: light dark; --ground: light-dark(#f2f3f5, #0d1014); --card: light-dark(#fff, #151b22);
  --line: light-dark(#d5d9de, #2a323c); --text: light-dark(#1a1f25, #e8ecf1); --soft: light-dark(#4d5763, #9aa7b5);
  --accent: light-dark(#0b7285, #1b7f93); }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; background: var(--ground); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }
main { width: min(26rem, calc(100vw - 5rem)); padding: 1.5rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
h1 { margin: 0 0 .5rem; font-size: 1.25rem; }
p { margin: 0 0 1.25rem; color: var(--soft); }
label { display: block; margin-bottom: .35rem; font-weight: 600; }
form div { display: flex; gap: .5rem; }
input, button { font: inherit; padding: .55rem .8rem; border-radius: 8px; border: 1px solid var(--line); }
input { flex: 1; min-width: 0; background: var(--ground); color: inherit; }
button { background: var(--accent); border-color: var(--accent); color: #fff; font-weight: 600; cursor: pointer; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
"""

TOKEN_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>arr-stream</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>
<body><main><h1>arr-stream</h1><p>This server asks for the token that it printed when it was started.</p>
<form action="/" method="get"><label for="token">Token</label>
<div><input id="token" name="token" type="password" autocomplete="off" required autofocus>
<button>Open</button></div></form>
</main></body></html>
""".encode()

TOKEN_PAGE_POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
"""Content-Security-Policy of that page: its own style and its own form, nothing else."""
