"""Trainers around a loader: who asks it for a length or for samples, and how far training has come."""
