"""The tuner: chooses threads, buffers, lookahead and downloads while a pipeline runs, under a memory budget."""
