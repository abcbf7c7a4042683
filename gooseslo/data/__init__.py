"""Text to token files, packed samples, and the order in which a run sees them. Knows nothing of models' parallelism."""
