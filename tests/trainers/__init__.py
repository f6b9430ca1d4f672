"""Trainers in real processes, each in an environment of its own; see ``tools/environments.py``."""
