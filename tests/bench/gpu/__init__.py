"""Benches that need a GPU: throughput of ResNet-50, the stall of a save, time to an accuracy."""
