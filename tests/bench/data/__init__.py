"""The bench of a seek in the data."""
