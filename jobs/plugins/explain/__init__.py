"""The plugin explain: what the keys of a spec mean, their values, and where these came from.

- explain: the command.
"""
