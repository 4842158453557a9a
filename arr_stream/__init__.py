"""arr-stream: which patches of each frame should a vision-language model see?"""

from __future__ import annotations
