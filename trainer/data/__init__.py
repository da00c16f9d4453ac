"""Samples, batches and their order.

- batches: which samples are in which step, at any world size.
- builtin: the data sets that need no download.
- image_files: CIFAR-10 files and folders of images.
- feed: the batches of a training, ahead of the steps.
- loader: reads a per-sample data set in worker processes.
- worker_init: what the worker processes import before they are forked.
- transforms: augmentation of whole batches on the device.
- sample_rng: random numbers by seed, step and sample.
"""
