"""One pipeline stage of a stock model: foreign parts dropped, the model's own forward kept.

Hidden states come in as `inputs_embeds`, so the base model still makes its masks and positions; stand-ins replace
what belongs to other stages. Blocks keep their index, so every parameter keeps its Hugging Face name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gooseslo.parallel.recompute import Recomputation
from gooseslo.parallel.tensor.sequence import SequenceShards
from gooseslo.policies.policy import Policy


class Zero(nn.Module):
    """Stands in for an embedding whose result is added: a zero without dims, which broadcasts and never promotes."""

    def forward(self, ids: Tensor) -> Tensor:
        return torch.zeros((), device=ids.device)


STAND_INS: dict[str, type[nn.Module]] = {"identity": nn.Identity, "zero": Zero}


def cut_stage(model: nn.Module, policy: Policy, layers: range, *, is_first: bool, is_last: bool) -> None:
    """Drop from `model` (on the meta device) all that this stage does not hold."""
    blocks = model.get_submodule(policy.layers)
    for index in [int(key) for key in blocks._modules]:
        if index not in layers:
            del blocks._modules[str(index)]
    foreign = [*(() if is_first else policy.first), *(() if is_last else policy.last)]
    for name in foreign:
        model.set_submodule(name, STAND_INS[policy.stand_ins.get(name, "identity")]())


class StageModule(nn.Module):
    """What the schedule calls: token ids [B, S] or hidden states [B, S, D] in; hidden states or logits out.

    Under sequence parallelism (`shards`) the hidden states that come in and go out are [B, S / tp, D]. `position_ids`
    [B, S] that begin again from 0 within a row part it into documents, which the model's mask keeps apart.

    With `score`, the name of a classification head, the logits are its, for every token [B, S, classes]: Hugging Face's
    own class keeps those of a row's last token, which here the labels choose.
    """

    def __init__(
        self,
        model: Any,
        *,
        is_first: bool,
        is_last: bool,
        shards: SequenceShards | None = None,
        score: str | None = None,
        recomputation: Recomputation | None = None,
    ):
        super().__init__()
        self.model = model
        self.is_first, self.is_last = is_first, is_last
        self.shards = shards
        self.score = score
        self.recomputation = recomputation

    def forward(self, x: Tensor, **inputs: Tensor) -> Tensor:
        if self.shards is not None and not self.is_first:
            x = self.shards.receive(x)
        given = {"input_ids" if self.is_first else "inputs_embeds": x, "use_cache": False, **inputs}
        if self.is_last and self.score is None:
            return self.model(**given).logits
        hidden = self.model.base_model(**given).last_hidden_state
        if self.is_last:
            return self.model.get_submodule(self.score)(hidden)
        return hidden if self.shards is None else self.shards.send()
