"""Memory that processes share: counters, arrays, rows, bytes, and the files that hold them."""
