"""Benches of the training loop."""
