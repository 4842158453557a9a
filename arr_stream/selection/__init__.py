"""Choosing cells under a budget."""
