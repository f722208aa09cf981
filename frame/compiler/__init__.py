"""Passes, autodiff and optimizers."""
