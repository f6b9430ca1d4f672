"""Tables of Delta Lake, Iceberg and Lance: which files, or fragments, a version of them consists of."""
