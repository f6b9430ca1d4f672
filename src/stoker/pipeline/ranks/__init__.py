"""The rank of a process: which samples are its own, and whether all ranks read the same."""
