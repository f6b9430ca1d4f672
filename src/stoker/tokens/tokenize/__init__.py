"""Text to files of tokens."""
