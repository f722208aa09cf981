"""The interfaces that a device backend implements."""
