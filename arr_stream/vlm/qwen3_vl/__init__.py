"""Local Qwen3-VL that receives only the chosen cells of each frame."""
