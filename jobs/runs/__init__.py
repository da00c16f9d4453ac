"""Run directories: found, made, read and checked."""
