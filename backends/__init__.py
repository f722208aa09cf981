"""The device backends of frame, one folder each, found through entry points."""
