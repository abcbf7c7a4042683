"""Fused kernels, one file each; none yet. Knows nothing of ranks."""
