"""Llama: grouped-query attention with rotary positions, gated MLP, RMSNorm; the head tied or not."""

from gooseslo.policies.policy import Column, KeyValueColumn, Policy, Row, VocabEmbedding, VocabHead

LLAMA = Policy(
    architecture="llama",
    layers="model.layers",
    first=("model.embed_tokens",),
    last=("model.norm", "lm_head"),
    stand_ins={"model.norm": "identity"},
    everywhere=("model.rotary_emb",),
    splits={
        "model.embed_tokens": VocabEmbedding(),
        "model.layers.*.self_attn.q_proj": Column(),
        "model.layers.*.self_attn.k_proj": KeyValueColumn(),
        "model.layers.*.self_attn.v_proj": KeyValueColumn(),
        "model.layers.*.self_attn.o_proj": Row(),
        "model.layers.*.mlp.gate_proj": Column(),
        "model.layers.*.mlp.up_proj": Column(),
        "model.layers.*.mlp.down_proj": Row(),
        "lm_head": VocabHead(),
    },
    replicated=("model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm", "model.norm"),
    attention="self_attn",
    regions=("model.layers.*.self_attn", "model.layers.*.mlp"),
    divided_by_copies={"model.layers.*.self_attn": ("num_key_value_groups",)},
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    split_dropout=("model.layers.*.self_attn",),
)
