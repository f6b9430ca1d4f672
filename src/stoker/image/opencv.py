"""OpenCV, made ready while this module is imported: a fork waits for that.

What OpenCV does once, when a function is first called, it does under locks of its own: a child that is forked meanwhile waits
for them for ever.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np

__all__ = ["cv2"]

cv2: Final[Any] = importlib.import_module("cv2")
# Pictures are divided among threads and processes already; and its threads do not outlive a fork.
cv2.setNumThreads(1)
for _channels in (1, 3):
    _pixels = np.zeros((4, 4, _channels), np.uint8)
    cv2.flip(cv2.resize(_pixels, (2, 3), interpolation=cv2.INTER_LINEAR_EXACT), 1)
