"""Methods of ``StreamingDataset`` by subject, and the checks and the opening of what they read."""
