"""Samples, batches and their order.

- sources: the kinds of data sets.
- batches: which samples belong to which step, at any world size.
- builtin: the data sets that need no files, and the creation of all others.
- image_files: CIFAR-10 files and folders of images.
- tokens: token files, text and Python's source code.
- feed: training and held-out batches of samples that are looked up by index.
- stream: training batches of a stream, with its position.
- to_device: moves a batch to the device and transforms it there.
- collate: makes a batch of samples.
- loader: reads a per-sample data set in worker processes.
- worker_init: the first import of the workers' fork server.
- transforms: augmentation of whole batches on the device.
- sample_rng: random numbers by seed, step and sample.
"""
