"""A shard in memory or on disk: fetched, verified, within its quota."""
