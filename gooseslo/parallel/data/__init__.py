"""Data parallelism: the flat gradient buffer."""
