"""Tests and runs of the environment ``torchtitan``."""
