"""Stages: what is done to the samples of a chunk, one after the other. A stage knows of no other."""
