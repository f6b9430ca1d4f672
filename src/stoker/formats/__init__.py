"""Shard formats: one module a format, from the bytes of a shard to columns and back."""
