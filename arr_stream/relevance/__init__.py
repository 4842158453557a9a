"""Relevance of the places of a frame: queries, three scorers, and their balance."""
