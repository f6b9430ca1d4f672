"""Chunks of Lightning's litdata."""
