"""Imported once: has pyarrow convert something to NumPy, in one thread.

The first conversion imports pandas, where that is installed, and others wait for it in C++. Without a global lock they wait
for ever: to load an extension module of pandas, Python has all threads stop at Python code, to which those do not come back
(pyarrow 24.0). While this module is imported, other threads that import it wait as Python's imports do.
"""

from __future__ import annotations

import pyarrow as pa

pa.array([0, None]).to_numpy(zero_copy_only=False)
