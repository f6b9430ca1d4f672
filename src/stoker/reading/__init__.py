"""Open shards, and samples by id."""
