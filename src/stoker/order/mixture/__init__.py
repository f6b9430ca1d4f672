"""Mixtures: how several streams share an epoch."""
