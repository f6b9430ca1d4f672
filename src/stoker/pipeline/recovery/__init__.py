"""Samples that are bad or filtered: found, left out or replaced, and told of; the others come as if nothing had been."""
