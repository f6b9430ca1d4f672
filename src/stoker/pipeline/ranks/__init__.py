"""The rank of a process: which samples are its own, whether all ranks read the same, and wrappers that divide once more."""
