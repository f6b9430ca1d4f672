"""Mixtures: the division of an epoch among several streams."""
