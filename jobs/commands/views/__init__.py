"""Lines and tables that several commands show of a run.

- words: states, causes, nodes and times in plain words.
- table: prints rows as columns, or below each other.
"""
