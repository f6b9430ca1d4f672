"""Shards by index, through a local cache, to samples by place; and their writers."""
