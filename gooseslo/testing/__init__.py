"""Ranks, tiny models and parity checks, shipped so that users can prove their own policy."""
