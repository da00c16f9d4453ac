"""Tests of the room sharded."""
