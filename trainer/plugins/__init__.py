"""The plugins of the trainer: `jobs.plugins` has their list, and says what a plugin is."""
