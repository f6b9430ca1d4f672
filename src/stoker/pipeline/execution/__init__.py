"""Execution of chunks: in the consumer's thread, or in threads or processes that read ahead."""
