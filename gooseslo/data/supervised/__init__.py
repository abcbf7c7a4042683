"""Examples with something to be learnt in them: answers to prompts, labels of texts."""
