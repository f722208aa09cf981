"""The graph IR."""
