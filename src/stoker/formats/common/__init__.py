"""What several formats share: gathering, compression, hashing, containers."""
