"""Data sets that are read by sample, by number or as a stream; processes that read ahead.

- hooks: what the trainer finds in this plugin.
- by_sample: reads samples that have a number.
- stream: reads samples in one order only, which is resumed exactly.
- collate: makes a batch of samples.
- processes: a loader with processes of each rank that read ahead: launch.num_workers.
- worker_init: the first import of the workers' fork server.
"""
