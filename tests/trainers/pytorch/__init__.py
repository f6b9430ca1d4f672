"""Tests and runs of the environment ``pytorch``."""
