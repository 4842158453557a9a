"""Measurement of a choice of cells by right answers of a model trained on the questions."""
