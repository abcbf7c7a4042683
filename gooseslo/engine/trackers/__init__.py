"""Experiment trackers: observers that hand the records to TensorBoard and to Weights & Biases."""
