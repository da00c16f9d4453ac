"""Adds the command export: the weights of a checkpoint as safetensors, for other programs.

- export: finds the run, and becomes `python -m trainer.plugins.export`.
"""
