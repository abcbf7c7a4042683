"""One short declarative file per architecture: what is split, how, and what each pipeline end owns. No torch."""
