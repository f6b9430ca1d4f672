"""Shard formats, one module or folder each: from the bytes of a shard to columns and back."""
