"""Models behind a server that speaks the OpenAI protocol, such as vLLM, SGLang, Ollama and llama.cpp.

A vLLM with arr-stream's plugin receives the chosen cells exactly (`carrying`). Other servers take whole pictures, so
their models get an approximation: `packing` describes the pictures, `docs/servers.md` the losses.
"""

from arr_stream.vlm.server.session import EitherSession, ServerSession

__all__ = ["EitherSession", "ServerSession"]
