"""Local files: opened, mapped, walked, copied, and replaced whole."""
