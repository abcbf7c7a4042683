"""Tensor parallelism on plain local tensors with explicit autograd collectives."""
