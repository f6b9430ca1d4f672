"""Datasets of the Hugging Face Hub as a store."""
