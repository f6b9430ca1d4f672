"""Chunks: batches that are read together."""
