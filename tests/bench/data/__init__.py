"""Benches of the order and the speed of samples."""
