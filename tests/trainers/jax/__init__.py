"""Tests and runs of the environment ``jax``."""
