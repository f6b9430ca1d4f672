"""Tar files of samples, as WebDataset writes them."""
