"""Models behind a server that speaks the OpenAI protocol, such as vLLM, SGLang, Ollama and llama.cpp.

A vLLM with arr-stream's plugin receives the chosen cells exactly (`carrying`). Other servers take whole pictures, so
their models get an approximation: `packing` describes the pictures, `docs/servers.md` the losses.
"""

from arr_stream.vlm.server.either import EitherViewer
from arr_stream.vlm.server.viewer import ServerViewer

__all__ = ["EitherViewer", "ServerViewer"]
