"""`python -m arr_stream`."""

from __future__ import annotations

from arr_stream.cli import main

if __name__ == "__main__":
    main()
