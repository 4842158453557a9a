"""The only module that depends on the internal structure of transformers' models of `families`.

Names of parts, calls of blocks and the layout of a cache may change with a version of transformers, so versions that
were not tested are refused.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arr_stream.errors import ModelUnsupported
from arr_stream.extras import needed_by
from arr_stream.vlm.qwen3_vl.cells import Cells, interpolation, patch_positions
from arr_stream.vlm.qwen3_vl.families import FAMILIES

SUPPORTED = (">=5.18", "<5.25")
"""Versions of transformers whose Qwen3-VL has the expected structure."""


def use_transformers() -> Any:
    """Import transformers after a check of its version, with progress bars and advice switched off.

    Raises:
        BackendUnavailable: It is not installed, or cannot be imported.
        ModelUnsupported: It is older or newer than `SUPPORTED`.
    """
    if not torch.cuda.is_available():
        # torchvision, which transformers imports, would load Triton, whose leak report at exit is of no use to anybody.
        sys.modules.setdefault("triton", None)  # type: ignore[arg-type]
    with needed_by("Qwen3-VL", "vlm"):
        import transformers
        from packaging.specifiers import SpecifierSet
    wanted = ",".join(SUPPORTED)
    if not SpecifierSet(wanted).contains(transformers.__version__, prereleases=True):
        raise ModelUnsupported(
            f"transformers {transformers.__version__} is installed, and Qwen3-VL is supported with {wanted}",
            remedy=f"pip install 'transformers{wanted}'",
        )
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


@dataclass(frozen=True, slots=True)
class VisualTokens:
    """Output of the vision tower for K cells: `features` `[K, D]` take the place of the token embeddings.

    `deepstack`, `[K, D]` each, are added after the first layers of the language model (DeepStack, Meng et al. 2024).
    """

    features: Tensor
    deepstack: tuple[Tensor, ...]

    def select(self, keep: Tensor | slice) -> VisualTokens:
        """Return some of the tokens, by mask or by index."""
        return VisualTokens(self.features[keep], tuple(level[keep] for level in self.deepstack))


class Adapter:
    """The parts of a loaded model of one of `FAMILIES` that sparse feeding and a growing memory need.

    `attention_layers` are the numbers of the layers with keys and values; the others hold a recurrent state.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._visual = model.model.visual
        self._language = model.model.language_model
        self._head = model.lm_head
        self._embeddings = model.get_input_embeddings()
        self._table_side = int(self._visual.num_grid_per_side)
        self.config = model.config
        self.family = FAMILIES[model.config.model_type]
        text = model.config.text_config
        kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
        self.attention_layers = tuple(at for at, kind in enumerate(kinds) if kind == "full_attention")
        self._deepstack_after = tuple(self._visual.deepstack_visual_indexes) if self.family.deepstack else ()

    @property
    def device(self) -> torch.device:
        return torch.device(self._model.device)

    def encode(self, rows: Tensor, cells: Cells, segments: Sequence[int]) -> VisualTokens:
        """Run the vision tower over K cells, given as `patch_rows`, at their true positions in the full grid.

        `segments` are the numbers of cells of each frame in turn; cells attend to those of their own frame.
        """
        visual, device = self._visual, self.device
        places = patch_positions(cells)
        indices, weights = interpolation(places, cells.grid_hw, self._table_side)
        lengths = torch.tensor([0, *segments], dtype=torch.int32).cumsum(0, dtype=torch.int32) * 4
        hidden = visual.patch_embed(rows.to(device))
        table = visual.pos_embed(indices.to(device)) * weights.to(device)[:, :, None]
        hidden = hidden + table.sum(1).to(hidden.dtype)
        rotation = visual.rotary_pos_emb(hidden, places.to(device))
        deepstack = []
        for number, block in enumerate(visual.blocks):
            hidden = block(
                hidden, cu_seqlens=lengths.to(device), max_seqlen=4 * max(segments), position_embeddings=rotation
            )
            if number in self._deepstack_after:
                merger = visual.deepstack_merger_list[self._deepstack_after.index(number)]
                deepstack.append(merger(hidden))
        return VisualTokens(visual.merger(hidden), tuple(deepstack))

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Return the embeddings of text tokens, `[N, D]`."""
        embedded: Tensor = self._embeddings(torch.tensor(ids, dtype=torch.long, device=self.device))
        return embedded

    def new_cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self.config.text_config)

    def extend(
        self,
        cache: Any,
        embeddings: Tensor,
        positions: Tensor,
        visual: Tensor,
        deepstack: Sequence[Tensor],
        bias: Tensor | None = None,
    ) -> Tensor:
        """Run the language model over N more tokens and cache them; return the last hidden states, `[N, D]`.

        Args:
            cache, embeddings: From `new_cache`, and `[N, D]`.
            positions: `[3, N]`: time, row, column. With a fourth row, transformers would take gaps for borders between
                packed sequences.
            visual, deepstack: `[N]` bool, the tokens that are cells, and `[cells, D]` of each level.
            bias: `[cached + N]` added to the attention to each token; None for plain causal attention.
        """
        deep = len(deepstack) > 0 and bool(visual.any())
        levels = {
            "visual_pos_masks": visual.to(self.device)[None] if deep else None,
            "deepstack_visual_embeds": list(deepstack) if deep else None,
        }
        outputs = self._language(
            inputs_embeds=embeddings[None],
            position_ids=positions.to(self.device)[:, None],
            attention_mask=None if bias is None else self._biased(bias, embeddings),
            past_key_values=cache,
            use_cache=True,
            **(levels if self.family.deepstack else {}),
        )
        hidden: Tensor = outputs.last_hidden_state[0]
        return hidden

    def _biased(self, bias: Tensor, embeddings: Tensor) -> Tensor:
        """Return a causal mask with the bias on the visible tokens; `[1, 1, N, cached + N]`."""
        added, known = len(embeddings), len(bias) - len(embeddings)
        forbidden = torch.ones(added, len(bias), dtype=torch.bool, device=embeddings.device).triu(known + 1)
        mask = bias.to(embeddings.device, embeddings.dtype).expand(added, -1)
        biased: Tensor = mask.masked_fill(forbidden, torch.finfo(embeddings.dtype).min)[None, None]
        return biased

    def logits(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self._head(hidden).float()
        return scores

    def cached_tokens(self, cache: Any) -> int:
        return int(cache.get_seq_length())

    def cache_bytes(self, cache: Any) -> int:
        return sum(tensor.nbytes for layer in cache.layers for tensor in _held(layer))

    def mark(self, cache: Any) -> list[Any]:
        """Return marks for `rewind`: for each layer the number of its tokens, or a copy of its recurrent state."""
        tokens = self.cached_tokens(cache)
        return [copy.deepcopy(layer) if hasattr(layer, "recurrent_states") else tokens for layer in cache.layers]

    def rewind(self, cache: Any, marks: list[Any]) -> None:
        """Restore the cache to the state of `mark`; once for each mark.

        It goes layer by layer, since a pass that broke off leaves them uneven.
        """
        for number, (layer, mark) in enumerate(zip(cache.layers, marks, strict=True)):
            if not isinstance(mark, int):
                cache.layers[number] = mark
            elif getattr(layer, "keys", None) is not None:
                layer.keys, layer.values = layer.keys[..., :mark, :], layer.values[..., :mark, :]

    def keys(self, cache: Any, layer: int) -> Tensor:
        """Return the keys of one layer, one for each head of the queries; `[heads, cached, d]`."""
        attention = self._language.layers[layer].self_attn
        keys: Tensor = cache.layers[layer].keys[0]
        return keys.repeat_interleave(attention.num_key_value_groups, dim=0)

    @contextmanager
    def attention_inputs(self, layer: int) -> Iterator[list[tuple[Tensor, tuple[Tensor, Tensor]]]]:
        """Record the inputs of one layer's attention within the context: hidden states and rotations."""
        gathered: list[tuple[Tensor, tuple[Tensor, Tensor]]] = []

        def gather(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
            gathered.append((kwargs["hidden_states"], kwargs["position_embeddings"]))

        hook = self._language.layers[layer].self_attn.register_forward_pre_hook(gather, with_kwargs=True)
        try:
            yield gathered
        finally:
            hook.remove()

    def queries(self, layer: int, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the scaled queries of one layer from the inputs of its attention; `[heads, N, d]`."""
        attention = self._language.layers[layer].self_attn
        heads = self.config.text_config.num_attention_heads
        # Qwen3.5 has a gate beside each head's query, and rotates the first part of a head alone.
        projected = attention.q_proj(hidden).view(*hidden.shape[:-1], heads, -1)[..., : attention.head_dim]
        query = attention.q_norm(projected).transpose(1, 2)
        cosine, sine = (part.unsqueeze(1) for part in rotation)
        turned, rest = query.split([cosine.shape[-1], attention.head_dim - cosine.shape[-1]], dim=-1)
        low, high = turned.chunk(2, dim=-1)
        turned = turned * cosine + torch.cat([-high, low], dim=-1) * sine
        scaled: Tensor = torch.cat([turned, rest], dim=-1)[0] * attention.scaling
        return scaled


def _held(layer: Any) -> list[Tensor]:
    """Return the tensors of one layer of a cache."""
    states = [*getattr(layer, "conv_states", {}).values(), *getattr(layer, "recurrent_states", {}).values()]
    held = [getattr(layer, "keys", None), getattr(layer, "values", None), *states]
    return [tensor for tensor in held if tensor is not None]
