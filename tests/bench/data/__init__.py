"""The bench of a seek in the data, and images for others."""
