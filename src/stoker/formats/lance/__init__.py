"""Tables of Lance: rows of a version, read by the package ``lance`` in a helper process."""
