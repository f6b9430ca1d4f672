"""Tables of Delta Lake and Iceberg: which files a version of them consists of."""
