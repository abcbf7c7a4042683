"""Tiny configs of each architecture, for proofs that run in a second."""

from __future__ import annotations

from typing import Any

TINY: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": 96,
        "n_positions": 32,
        "n_embd": 24,
        "n_layer": 4,
        "n_head": 4,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "llama": {
        "vocab_size": 96,
        "max_position_embeddings": 32,
        "hidden_size": 24,
        "intermediate_size": 36,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "bos_token_id": None,
        "eos_token_id": None,
    },
}
"""Architecture -> fields of its Hugging Face config."""


def tiny_fields(architecture: str, **changes: Any) -> dict[str, Any]:
    """The tiny config's fields with `changes`."""
    return {**TINY[architecture], **changes}
