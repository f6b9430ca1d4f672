"""The index of a dataset: its shards, and what they hold."""
