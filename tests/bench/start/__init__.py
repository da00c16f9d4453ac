"""Benches of starts and restarts. They run whole trainings, as users start them."""
