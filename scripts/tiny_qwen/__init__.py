"""Parts of `train_tiny_qwen3_vl.py`."""
