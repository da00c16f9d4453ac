"""The rooms of the trainer: `jobs.rooms` has their list, and says what a room is."""
