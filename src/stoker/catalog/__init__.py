"""Datasets at a URL: located, their format detected, their files listed and described as shards."""
