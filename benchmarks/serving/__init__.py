"""Stock Qwen3-VL, published pruning and chosen cells side by side in one engine: vLLM."""
