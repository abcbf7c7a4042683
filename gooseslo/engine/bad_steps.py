"""Steps whose loss or gradient is not finite: why one was skipped, which samples it had, and when it is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gooseslo.engine.checkpoint.ranks import Ranks
from gooseslo.parallel.mesh import Coordinates
from gooseslo.schema.keys import listed


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Why the update of a step was skipped, as one rank sees it; that it was is agreed by all."""

    is_overflow: bool
    """Of fp16's range, where a smaller loss scale may help: nothing is wrong with the data."""
    bad_losses: tuple[int, ...]
    """This rank's micro-batches whose loss is not finite, counted from 0."""
    num_micro_batches: int
    """Of this rank."""
    gradients_are_finite: bool
    """Of this rank."""
    at: Coordinates


@dataclass(frozen=True, kw_only=True)
class _Finding:
    skip: Skip
    sample_ids: list[list[int]]
    """Of each micro-batch of this rank."""


def describe(skip: Skip, sample_ids: Tensor, *, step: int, first_position: int, ranks: Ranks | None = None) -> str:
    """A paragraph on a bad step: where it went wrong, and the samples that may be why; collective over all ranks.

    `sample_ids`: of this rank's rows; `first_position`: of the step's first sample in the order of the data.
    """
    by_micro_batch = [chunk.tolist() for chunk in sample_ids.chunk(skip.num_micro_batches)]
    found = (ranks or Ranks()).gather(_Finding(skip=skip, sample_ids=by_micro_batch))
    replicas = {each.skip.at.dp: each for each in found}  # the ranks of a replica have the same samples
    num_samples = sum(len(ids) for each in replicas.values() for ids in each.sample_ids)
    where = f"the step had positions {first_position} to {first_position + num_samples - 1} of the data's order"
    bad_losses = sorted({(each.skip.at.dp, index) for each in found for index in each.skip.bad_losses})
    if bad_losses:
        suspects = [number for dp, index in bad_losses for number in replicas[dp].sample_ids[index]]
        of_replica = {dp: [str(index) for other, index in bad_losses if other == dp] for dp, _ in bad_losses}
        named = listed([f"micro-batch {listed(indices, 8)} of dp={dp}" for dp, indices in of_replica.items()], 4)
        return (
            f"step {step} is skipped: the loss is not finite in {named}: samples {listed(map(str, suspects))}; {where}"
        )
    places = listed([str(each.skip.at) for each in found if not each.skip.gradients_are_finite], 4)
    samples = [number for dp in sorted(replicas) for ids in replicas[dp].sample_ids for number in ids]
    return (
        f"step {step} is skipped: every loss is finite, but the gradient is not, on {places}: "
        f"samples {listed(map(str, samples))}; {where}"
    )


def too_many(num_in_a_row: int, *, step: int, limit: int) -> FloatingPointError:
    """What ends a run that learns nothing any more."""
    return FloatingPointError(
        f"{num_in_a_row} steps in a row had no finite loss and gradient, the last of them step {step}"
        f" (train.max_skipped_steps={limit}). The weights are those before the first of these steps, and step {step} is"
        " saved: the run can be resumed; the log names the samples"
    )


def bad_micro_batches(losses: Sequence[Tensor]) -> tuple[int, ...]:
    """The indices of the losses that are not finite."""
    if not losses:
        return ()
    return tuple(torch.stack(list(losses)).isfinite().logical_not().nonzero().flatten().tolist())
