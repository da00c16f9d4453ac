"""Tests of the room weights."""
