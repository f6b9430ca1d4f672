"""The prefetch pipeline, its progress and its state."""
