"""Benches of submits, starts, restarts and ends, most of them of whole trainings."""
