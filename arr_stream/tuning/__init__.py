"""Fit of the scorers' weights to footage in which the object is known."""
