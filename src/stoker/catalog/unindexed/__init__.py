"""Files without an index: listed, their headers read, described as shards."""
