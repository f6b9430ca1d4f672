"""Records of a run: leases, commits, plans and checkpoints, and their bytes."""
