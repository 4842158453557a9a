"""The torch implementation of the loop's pixel primitives, and the device that runs its steps.

Every module mirrors one based on OpenCV and equals it within the tolerances that its tests state. All of it runs
on a CPU too. Nothing here waits for the device: shapes follow from shapes alone, never from values, so that a step can
be captured once as a CUDA graph and replayed. Importing the package registers its primitives.
"""

from arr_stream.gpu import flow, pixels

__all__ = ["flow", "pixels"]
