"""Partitions: which rank reads which samples."""
