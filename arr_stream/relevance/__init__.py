"""What matters on a frame: queries, three ways of knowing, and their balance."""
