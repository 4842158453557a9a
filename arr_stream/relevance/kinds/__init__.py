"""Kinds of query: a scorer each."""
