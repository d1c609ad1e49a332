"""Observers of a forward, one subject a file: each finds its modules by the contracts of their packages."""
