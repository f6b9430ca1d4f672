"""Tests and runs of the environment ``ray``."""
