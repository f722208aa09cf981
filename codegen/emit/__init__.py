"""Emission: text from loop IR, and no decisions."""
