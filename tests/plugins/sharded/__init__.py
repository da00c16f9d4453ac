"""Tests of the plugin sharded."""
