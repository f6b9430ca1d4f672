"""Workers of a shard loader: which ranges of samples each reads, and when they count as done."""
