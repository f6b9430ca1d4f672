"""Rows of many files put together as one column, in memory that is used again."""
