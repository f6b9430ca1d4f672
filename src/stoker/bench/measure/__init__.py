"""Steps, times, page cache and processor use of a run."""
