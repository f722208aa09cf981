"""Schedules: how a group becomes loop IR."""
