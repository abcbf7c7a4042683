"""Text of any size to token files, as fast as the tokenizer: readers, worker processes, a writer that can go on."""
