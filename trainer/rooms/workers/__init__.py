"""Processes of each rank that read samples ahead: launch.num_workers.

- hooks: what the trainer finds in this room.
- processes: a loader with such processes.
- worker_init: the first import of the workers' fork server.
"""
