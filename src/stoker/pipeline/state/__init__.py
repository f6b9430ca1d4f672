"""Positions in an epoch, and the states that resume there."""
