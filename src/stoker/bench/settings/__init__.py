"""Workloads: the project's own and DLIO's files."""
