"""Benches of saves and loads."""
