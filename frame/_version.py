"""The version of frame, read by the build and by the caches."""

__version__ = "0.1.0"
