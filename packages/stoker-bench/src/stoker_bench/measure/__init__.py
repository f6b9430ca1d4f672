"""Measurements of a run: times of steps, page cache, processor use."""
