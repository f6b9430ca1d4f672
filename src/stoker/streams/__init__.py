"""Several sources as one dataset, and which samples of each belong to it."""
