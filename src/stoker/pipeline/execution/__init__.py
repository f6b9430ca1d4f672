"""Execution of chunks: in the consumer's thread, or in threads that read ahead."""
