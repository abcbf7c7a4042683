"""The split layers that take a stock layer's place: column, row, vocab-parallel embedding and head.

Parameters keep their names (`weight`, `bias`) and the stock layer's orientation: `nn.Linear` stores [out, in],
GPT-2's `Conv1D` [in, out] (`transposed`). All forwards but a column layer's are collective over the tp group; what a
column layer needs of the other ranks is done once for its region (`regions.py`).

Shape suffixes: B batch, S sequence, D hidden, O local output features, I local input features, V local vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from gooseslo.parallel.collectives import Group, sum_over_group, sum_scatter_sequence
from gooseslo.parallel.tensor.linear import HandedWeight, linear, project
from gooseslo.parallel.tensor.overlap import copy_to_region, take_weight


class ColumnParallelLinear(nn.Module):
    """Y_O = X A_O: each rank computes its own output features; nothing is gathered."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, *, transposed: bool):
        super().__init__()
        self.weight, self.bias = weight, bias
        self.transposed = transposed
        self.handed: HandedWeight | None = None

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        handed = take_weight(self, hidden_BSD)
        if handed is None:
            return project(hidden_BSD, self.weight, self.bias, transposed=self.transposed)
        return linear(hidden_BSD, handed, self.bias, transposed=self.transposed)


class RowParallelLinear(nn.Module):
    """Y = sum over ranks of X_I A_I, plus the bias once, after the sum: value and gradient are one process's.

    Under sequence parallelism each rank keeps its shard of the sum, and its bias sees that shard's gradient alone.
    """

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        *,
        group: Group,
        transposed: bool,
        sequence_parallel: bool = False,
    ):
        super().__init__()
        self.weight, self.bias = weight, bias
        self.group, self.transposed = group, transposed
        self.leave = sum_scatter_sequence if sequence_parallel else sum_over_group

    def forward(self, part_BSI: Tensor) -> Tensor:
        out_BSD = self.leave(project(part_BSI, self.weight, None, transposed=self.transposed), self.group)
        return out_BSD if self.bias is None else out_BSD + self.bias


class VocabParallelEmbedding(nn.Module):
    """Rows [start, stop) of the table; ids of other ranks give zeros, and the sum over ranks is the lookup.

    `padding_idx` (of the whole table) is the row that gets no gradient, as in torch's embedding.
    """

    def __init__(self, weight: nn.Parameter, *, start: int, group: Group, padding_idx: int | None = None):
        super().__init__()
        self.weight = weight
        self.start, self.stop = start, start + weight.shape[0]
        self.group = group
        self.padding_row: int | None = None
        if padding_idx is not None and self.start <= padding_idx < self.stop:
            self.padding_row = padding_idx - self.start

    def forward(self, ids_BS: Tensor) -> Tensor:
        foreign_BS = (ids_BS < self.start) | (ids_BS >= self.stop)
        local_BS = (ids_BS - self.start).masked_fill(foreign_BS, 0)
        hidden_BSD = F.embedding(local_BS, self.weight, self.padding_row).masked_fill(foreign_BS[..., None], 0)
        return sum_over_group(hidden_BSD, self.group)


class VocabParallelHead(nn.Module):
    """Logits of the rank's part of the vocabulary, [B, S, V]; the loss takes them as they are."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, *, group: Group):
        super().__init__()
        self.weight, self.bias, self.group = weight, bias, group
        self.handed: HandedWeight | None = None

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        entered_BSD = copy_to_region(hidden_BSD, [self], self.group)
        handed = take_weight(self, entered_BSD)
        if handed is None:
            return F.linear(entered_BSD, self.weight, self.bias)
        return linear(entered_BSD, handed, self.bias, transposed=False)
