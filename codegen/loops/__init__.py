"""The loop IR and everything that works on it."""
