"""Cross entropy on logits whose vocabulary is split over the tp axis; the logits are never gathered.

Source: Shoeybi et al., "Megatron-LM" (arXiv:1909.08053), section 3 (fusing the output with the cross entropy).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from gooseslo.parallel.collectives import Group, all_reduce_

IGNORED = -100
"""A label that is not predicted."""


class _VocabParallelCrossEntropy(torch.autograd.Function):
    """Sum over rows of log(sum(exp(logits))) - logit of the label, with three reductions of one number a row."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, labels_N: Tensor, start: int, group: Group) -> Tensor:
        stop = start + logits_NV.shape[1]
        kept_N = labels_N != IGNORED
        mine_N = kept_N & (labels_N >= start) & (labels_N < stop)
        local_N = (labels_N - start).masked_fill(~mine_N, 0)

        peak_N = all_reduce_(logits_NV.amax(dim=1), group, dist.ReduceOp.MAX)
        exp_NV = (logits_NV - peak_N[:, None]).exp_()
        total_N = all_reduce_(exp_NV.sum(dim=1), group)
        label_logit_N = logits_NV.gather(1, local_N[:, None])[:, 0] - peak_N
        label_logit_N = all_reduce_(label_logit_N.masked_fill(~mine_N, 0), group)
        ctx.save_for_backward(exp_NV.div_(total_N[:, None]), local_N, mine_N, kept_N)
        return (total_N.log() - label_logit_N).masked_fill(~kept_N, 0).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        softmax_NV, local_N, mine_N, kept_N = ctx.saved_tensors
        scale_N = kept_N * gradient
        logits_gradient_NV = softmax_NV * scale_N[:, None]
        logits_gradient_NV.scatter_add_(1, local_N[:, None], -(mine_N * scale_N)[:, None])
        return logits_gradient_NV, None, None, None


def cross_entropy_sum(logits_BSV: Tensor, labels_BS: Tensor, *, start: int = 0, group: Group = None) -> Tensor:
    """Sum of the cross entropy over labels other than -100; a batch without any gives 0.

    `logits_BSV` are columns [start, start + V) of the vocabulary; `labels_BS` are already shifted. Computed in fp32,
    or fp64 for fp64 logits. Collective over `group` (the tp group) in the forward pass.
    """
    logits_NV = logits_BSV.reshape(-1, logits_BSV.shape[-1])
    if logits_NV.dtype in (torch.bfloat16, torch.float16):
        logits_NV = logits_NV.float()
    labels_N = labels_BS.reshape(-1)
    if group is None:
        return F.cross_entropy(logits_NV, labels_N, ignore_index=IGNORED, reduction="sum")
    return _VocabParallelCrossEntropy.apply(logits_NV, labels_N, start, group)
