"""Modules that several formats use: gathering, compression, hashing, containers."""
