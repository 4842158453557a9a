"""A hostile decoding process on a system without seccomp: the other layers must hold by themselves."""

from __future__ import annotations

from arr_stream.sources import sandbox_limits
from arr_stream.sources.sandbox_child import main
from tests.sandbox_hostile import Hostile

sandbox_limits.filter_system_calls = lambda _: False

if __name__ == "__main__":
    main(Hostile)
