"""Tokenised documents on the disk: PREFIX.bin and PREFIX.idx in Megatron's layout, PREFIX.json with facts."""
