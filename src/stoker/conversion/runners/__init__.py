"""Runners of a conversion's tasks: local processes, Ray."""
