"""Shuffles: from positions to samples of one dataset."""
