"""The parts of `train_tiny_clip.py`: words, phrases, batches, the model, what it is trained on, and its figures."""
