"""Engines: each module imports its client only when it is used."""
