"""Facts and checks of files without an index."""
