"""Samples, batches and their order.

- sources: the kinds of data sets.
- tables: the data sets of the core.
- batches: which samples belong to which step, at any world size.
- data_set: creates the data set of a spec.
- feed: training and held-out batches of samples that are looked up by index.
- to_device: moves a batch to the device and transforms it there, as the spec says.
"""
