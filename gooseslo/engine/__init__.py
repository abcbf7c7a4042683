"""A run: launch, build, train, evaluate, checkpoint, generate."""
