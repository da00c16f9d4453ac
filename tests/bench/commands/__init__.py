"""Benches of the commands that users type."""
