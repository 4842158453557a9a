"""Motion between frames: optical flow with confidence, its composition, and carrying along it."""
