"""gooseslo: stock Hugging Face transformers on a tensor x pipeline x data mesh."""

__version__ = "0.1.0"
