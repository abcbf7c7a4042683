"""GPT-2: `Conv1D` projections (weights stored as [in, out]), q, k and v fused as three blocks, tied head."""

from gooseslo.policies.policy import Column, Policy, Row, VocabEmbedding, VocabHead

GPT2 = Policy(
    architecture="gpt2",
    layers="transformer.h",
    first=("transformer.wte", "transformer.wpe", "transformer.drop"),
    last=("transformer.ln_f", "lm_head"),
    stand_ins={
        "transformer.wpe": "zero",
        "transformer.drop": "identity",
        "transformer.ln_f": "identity",
    },
    splits={
        "transformer.wte": VocabEmbedding(),
        "transformer.h.*.attn.c_attn": Column(blocks=3),
        "transformer.h.*.attn.c_proj": Row(),
        "transformer.h.*.mlp.c_fc": Column(),
        "transformer.h.*.mlp.c_proj": Row(),
        "lm_head": VocabHead(),
    },
    replicated=("transformer.wpe", "transformer.h.*.ln_1", "transformer.h.*.ln_2", "transformer.ln_f"),
    attention="attn",
    regions=("transformer.h.*.attn", "transformer.h.*.mlp"),
    divided={"transformer.h.*.attn": ("num_heads", "split_size")},
    tied={"lm_head.weight": "transformer.wte.weight"},
    replicated_dropout=("transformer.drop", "transformer.h.*.attn.resid_dropout", "transformer.h.*.mlp.dropout"),
    split_dropout=("transformer.h.*.attn",),
)
