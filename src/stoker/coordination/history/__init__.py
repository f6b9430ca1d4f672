"""What workers have done and will do, as records."""
