"""The public classes: dataset, DataLoader, shard loader, Parquet loader, LM stream."""
