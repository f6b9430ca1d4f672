"""Threads, forks, and memory that processes share."""
