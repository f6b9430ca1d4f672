"""Workload files: stoker's own and DLIO's."""
