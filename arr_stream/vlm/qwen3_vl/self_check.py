"""Does the installed transformers build Qwen3-VL as this package expects? Asked of a model made up on the spot."""

from __future__ import annotations

from arr_stream.vlm.qwen3_vl.library import use_transformers


def self_check() -> str:
    """Compare ours with transformers' own pass over a small model with random weights; one line about it.

    Raises:
        BackendUnavailable: transformers is not installed.
        ModelUnsupported: It is of another version, or the two passes differ.
    """
    transformers = use_transformers()
    import torch

    from arr_stream.vlm.qwen3_vl.adapter import Adapter

    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    text = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rope_parameters": rope}
    vision = {"depth": 3, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 64}
    config = transformers.Qwen3VLConfig(
        text_config={**text, **heads, "initializer_range": 0.2},
        vision_config={**vision, "deepstack_visual_indexes": [0, 1], "initializer_range": 0.2},
        image_token_id=60,
        video_token_id=61,
        vision_start_token_id=62,
        vision_end_token_id=63,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.Qwen3VLForConditionalGeneration(config).eval()
    Adapter(model).check()
    return f"transformers {transformers.__version__}: sparse feeding equals its own pass"
