"""A model behind a server that speaks the OpenAI protocol, such as vLLM, SGLang, Ollama and llama.cpp.

A vLLM with arr-stream's plugin is given the chosen cells as they are (`carrying`). Other servers take whole pictures,
so what their model gets is approximate: see `packing` for what is sent, and `docs/servers.md` for what is lost.
"""

from arr_stream.vlm.server.either import EitherViewer
from arr_stream.vlm.server.viewer import ServerViewer

__all__ = ["EitherViewer", "ServerViewer"]
