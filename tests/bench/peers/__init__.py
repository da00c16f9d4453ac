"""B5: trainings as users of other libraries write them, each with the library's own defaults."""
