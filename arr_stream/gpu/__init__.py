"""The steps of a frame on a torch device: no picture and no channel comes back to the host between frames.

Every module mirrors one that works on numpy arrays and equals it within the tolerances that its tests state. All of
it runs on a CPU too. Nothing here waits for the device: shapes follow from shapes alone, never from values, so that a
step can be captured once as a CUDA graph and replayed.
"""
