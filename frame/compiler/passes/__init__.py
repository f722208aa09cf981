"""The standard passes."""
