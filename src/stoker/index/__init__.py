"""Which shards a dataset has, and what they hold."""
