"""The side-by-side comparison behind ``compare.py``: what is measured, how it is run, what is printed."""
