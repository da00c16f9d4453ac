"""GPU hours before a submit; what may be deleted.

- gpu_hours: what a start of a job asks for; the confirmation above the user's limit.
- leftovers: what an ended run no longer needs, and its size.
- unlinked: copies of code and links that lead to no run.
"""
