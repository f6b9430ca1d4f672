"""Sources of tokens: Parquet, Megatron, raw files, memory."""
