"""Adds the command init: prepares a repository of the user for the installed kit.

- init: writes a first spec (first.yaml), kit.mk with the targets of all plugins, and .gitignore.
"""
