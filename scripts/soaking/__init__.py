"""The soak: an hour of a live stream with faults, and whether anything grows or is left behind."""
