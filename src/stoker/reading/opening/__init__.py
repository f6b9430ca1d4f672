"""Shards are fetched and opened: one by one, small ones in groups; and the readers that stay open."""
