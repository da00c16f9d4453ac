"""A module for each command, and what several commands share."""
