"""Comparison of two benchmark results by statistical tests."""
