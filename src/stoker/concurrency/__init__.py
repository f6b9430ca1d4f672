"""Threads, forks and memory that processes share: what the rest of stoker builds on to be safe in any process."""
