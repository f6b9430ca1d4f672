"""Requests of forked processes, answered by a helper process."""
