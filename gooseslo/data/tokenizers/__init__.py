"""The tokenizer of a run, what it is made from, and encoding with it."""
