"""A conversion as tasks: cut, run, written, and committed together."""
