"""Schedules for CPUs: how each kind of group becomes loop IR."""
