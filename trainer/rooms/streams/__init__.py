"""Training on a stream of samples, which continues after a resume where it was stopped.

- hooks: what the trainer finds in this room.
- stream: batches of a stream, and its saved position.
"""
