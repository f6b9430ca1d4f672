"""NPY and NPZ files."""
