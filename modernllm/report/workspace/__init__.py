"""A study as a saved W&B workspace."""
