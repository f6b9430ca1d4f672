"""The stage ``kv_cache``: how fast a storage keeps the keys and values of a language model's users."""
