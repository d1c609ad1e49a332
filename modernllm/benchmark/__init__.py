"""How fast a step is, always as a ratio of runs that took turns in one process."""
