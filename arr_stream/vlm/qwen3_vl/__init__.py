"""Qwen3-VL, given only the chosen cells of each frame."""
