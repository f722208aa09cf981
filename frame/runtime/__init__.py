"""The runtime: backends, compilation in stages, programs, caches and compiled models."""
