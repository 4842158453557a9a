"""A hostile decoding process on a system without seccomp: the other layers must hold by themselves."""

from __future__ import annotations

from arr_stream.sources.sandbox import lockdown
from arr_stream.sources.sandbox.child import main
from tests.sandbox_hostile import Hostile

lockdown.filter_system_calls = lambda _: False

if __name__ == "__main__":
    main(Hostile)
