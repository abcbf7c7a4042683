"""Fused kernels, one file each. Knows nothing of ranks."""
