"""A model behind a server that speaks the OpenAI protocol, such as vLLM, SGLang, Ollama and llama.cpp.

Such servers take whole pictures, so what the model gets is approximate: see `packing` for what is sent, and
`docs/servers.md` for what is lost against a model of our own. Nothing is kept at the server: every question carries the
newest frame's overview and crops, and the overviews of as many earlier frames as the context holds.
"""

from arr_stream.vlm.server.viewer import ServerViewer

__all__ = ["ServerViewer"]
