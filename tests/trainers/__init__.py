"""Trainers in real processes, each in an environment of its own; see ``setup.py``."""
