"""The cache on disk: its directory, what is fetched into it, and what keeps it within a limit."""
