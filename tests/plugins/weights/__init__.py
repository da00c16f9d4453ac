"""Tests of the plugin weights."""
