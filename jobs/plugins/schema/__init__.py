"""Adds `make schema`: the schema of specs for editors, and the tables of keys of configs/README.md.

- __main__: writes both from the dataclasses of the spec.
"""
