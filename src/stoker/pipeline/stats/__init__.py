"""Statistics of a loader, and their export."""
