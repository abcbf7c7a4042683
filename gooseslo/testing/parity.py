"""One process of plain transformers against a layout: loss, every gradient, every updated weight.

The reference is a loop that a reader would write: the stock class, the batch in one piece or in micro-batches, the
mean cross entropy over all tokens, torch's own optimizer. The layout's weights begin as the reference's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from gooseslo.engine.build import build_step
from gooseslo.engine.checkpoint.manifest import tensor_name
from gooseslo.engine.checkpoint.parts import PartTable
from gooseslo.engine.model_config import make_config
from gooseslo.engine.plan import make_plan
from gooseslo.engine.step import TrainStep
from gooseslo.parallel.data.strategy import Part
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.policies.registry import CLASSIFICATION
from gooseslo.schema.data_groups import ClassificationDataConfig, StdlibDataConfig
from gooseslo.schema.groups import LauncherConfig, ModelConfig, ParallelConfig, TrainConfig, TrainJob, ZeroConfig
from gooseslo.testing.ranks import run_ranks

OptimizerMaker = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain SGD with a rate large enough that weights move by much more than rounding."""
    return torch.optim.SGD(parameters, lr=0.5)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW as a run has it, without decay groups."""
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


OPTIMIZERS: dict[str, OptimizerMaker] = {"sgd": sgd, "adamw": adamw}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to train: an architecture with config fields, a layout, a batch, an optimizer."""

    architecture: str = "gpt2"
    fields: dict[str, Any] = field(default_factory=dict)
    head: str = "causal-lm"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    virtual_stages: int | None = None
    partition: Any = "parameters"
    samples: int = 16
    micro_batch_size: int = 2
    sequence_length: int = 16
    precision: str = "fp64"
    bf16_mode: str = "master"
    optimizer: str = "sgd"
    steps: int = 3
    activation_checkpointing: str | int = "none"
    recompute_ahead: int = 1
    clip_grad_norm: float = 0.0
    zero_stage: int = 0
    zero_shard_size: int | None = None
    zero_offload: bool = False
    zero_backend: str = "torch"
    zero_deepspeed: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    ignore_some_labels: bool = False
    documents: bool = False
    """Samples are several documents of random lengths, none of which sees another."""
    fixed_batch: bool = False
    """Every step trains on the same batch, so that its loss falls."""
    device: str = "cpu"

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp

    def job(self) -> TrainJob:
        """The case as a run's configuration."""
        return TrainJob(
            model=ModelConfig(name="tiny", architecture=self.architecture, config=self.fields, head=self.head),
            parallel=ParallelConfig(
                tp=self.tp,
                pp=self.pp,
                dp=self.dp,
                schedule=self.schedule,
                virtual_stages=self.virtual_stages,
                partition=self.partition,
                sequence_parallel=self.sequence_parallel,
            ),
            train=TrainConfig(
                global_batch_size=self.samples,
                micro_batch_size=self.micro_batch_size,
                sequence_length=self.sequence_length,
                precision=self.precision,
                bf16_mode=self.bf16_mode,
                activation_checkpointing=self.activation_checkpointing,
                recompute_ahead=self.recompute_ahead,
                clip_grad_norm=self.clip_grad_norm,
            ),
            zero=ZeroConfig(
                stage=self.zero_stage,
                backend=self.zero_backend,
                deepspeed=self.zero_deepspeed,
                shard_size=self.zero_shard_size,
                offload=self.zero_offload,
            ),
            data=ClassificationDataConfig(train="-") if self.head == CLASSIFICATION else StdlibDataConfig(),
            launcher=LauncherConfig(workers=self.world_size),
            device=self.device,
        )

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The global batch of a step: ids and labels, [samples, S] each.

        Labels are shifted ids or, for a classification head, a class at each text's last token.
        """
        generator = torch.Generator().manual_seed(1000 + step * (not self.fixed_batch))
        shape = (self.samples, self.sequence_length + 1)
        tokens = torch.randint(0, self.fields["vocab_size"], shape, generator=generator)
        if self.head == CLASSIFICATION:
            return self._texts(tokens[:, :-1], generator)
        labels = tokens[:, 1:].clone()
        if self.ignore_some_labels:
            labels[torch.rand(labels.shape, generator=generator) < 0.3] = -100
            labels[: self.micro_batch_size] = -100
        return tokens[:, :-1], labels

    def _texts(self, ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Texts of random lengths, padded with the last token of the vocabulary, which begins some but ends none."""
        pad = self.fields["vocab_size"] - 1
        places, rows = torch.arange(self.sequence_length), torch.arange(self.samples)
        last = torch.randint(0, self.sequence_length, (self.samples,), generator=generator)
        ids[::2, 0] = pad
        ids[rows, last] = ids[rows, last].clamp(max=pad - 1)
        ids = torch.where(places > last[:, None], pad, ids)
        labels = torch.full_like(ids, -100)
        labels[rows, last] = torch.randint(0, self.fields["num_labels"], (self.samples,), generator=generator)
        return ids, labels

    def positions(self, step: int) -> Tensor | None:
        """int64 [samples, S]: places of a step's tokens in their documents; None where a sample is one document."""
        if not self.documents:
            return None
        generator = torch.Generator().manual_seed(2000 + step)
        begins = torch.rand(self.samples, self.sequence_length, generator=generator) < 0.2
        begins[:, 0] = True
        places = torch.arange(self.sequence_length).expand(self.samples, -1)
        return places - torch.where(begins, places, 0).cummax(dim=1).values


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What training gave, in full tensors by Hugging Face name."""

    losses: list[float]
    norms: list[float]
    gradients: list[dict[str, Tensor]]
    """Of each step, after clipping."""
    weights: dict[str, Tensor]


def run_reference(case: Case) -> Outcome:
    """Plain transformers in this process, from the same random initial weights; in fp32 for a bf16 case."""
    alone = replace(case, tp=1, pp=1, dp=1, sequence_parallel=False)
    alone = replace(alone, schedule="auto", virtual_stages=None, partition="uniform")
    alone = replace(
        alone, zero_stage=0, zero_shard_size=None, zero_offload=False, zero_backend="torch", zero_deepspeed={}
    )
    plan = make_plan(alone.job(), num_devices=_num_devices(case))
    context = ParallelContext(plan.topology)
    device = torch.device(case.device)
    start = build_step(plan, context, case.job().train, seed=case.seed, device=device).data_parallel.stepped
    config = make_config(case.architecture, case.fields, case.head)
    model_class: Any = AutoModelForSequenceClassification if case.head == CLASSIFICATION else AutoModelForCausalLM
    model = model_class.from_config(config, dtype=plan.dtypes.stepped).to(device)
    with torch.no_grad():
        drawn = {part.name: part.parameter for part in start}
        for name, parameter in model.named_parameters():
            parameter.copy_(drawn[name])
    model.train()
    optimizer = OPTIMIZERS[case.optimizer](list(model.parameters()))
    losses, norms, gradients = [], [], []
    for step in range(case.steps):
        ids, labels = (tensor.to(device) for tensor in case.batch(step))
        positions = case.positions(step)
        optimizer.zero_grad()
        num_tokens = (labels != -100).sum()
        total = 0.0
        for micro in torch.arange(len(ids)).split(case.micro_batch_size):
            micro_ids, micro_labels = ids[micro], labels[micro]
            apart = {} if positions is None else keep_apart(positions[micro].to(device), dtype=plan.dtypes.stepped)
            logits = model(input_ids=micro_ids, use_cache=False, **apart).logits
            if case.head == CLASSIFICATION:  # one row of logits a text
                micro_labels = micro_labels[micro_labels != -100]
            logits = logits.reshape(-1, logits.shape[-1])
            loss = F.cross_entropy(logits, micro_labels.flatten(), reduction="sum") / num_tokens
            loss.backward()
            total += loss.item()
        limit = case.clip_grad_norm or float("inf")
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), limit).item())
        losses.append(total)
        gradients.append({name: p.grad.cpu().clone() for name, p in model.named_parameters()})
        optimizer.step()
    return Outcome(losses=losses, norms=norms, gradients=gradients, weights=_snapshot(dict(model.named_parameters())))


def keep_apart(positions: Tensor, *, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a plain model is given for documents that do not see each other: positions [B, S], a mask [B, 1, S, S]."""
    document, place = (positions == 0).cumsum(dim=1), torch.arange(positions.shape[1], device=positions.device)
    unseen = (document[:, :, None] != document[:, None, :]) | (place[:, None] < place)
    mask = torch.zeros(unseen.shape, dtype=dtype, device=positions.device).masked_fill(unseen, torch.finfo(dtype).min)
    return {"position_ids": positions, "attention_mask": mask[:, None]}


def run_layout(case: Case, rank: int = 0) -> Outcome:
    """The case on its own mesh, full tensors gathered on every rank; collective over the case's world."""
    plan = make_plan(case.job(), num_devices=_num_devices(case))
    context = ParallelContext(plan.topology, rank)
    step_once = build_step(
        plan, context, case.job().train, zero=case.job().zero, seed=case.seed, device=torch.device(case.device)
    )
    replicas = step_once.data_parallel
    optimizer = OPTIMIZERS[case.optimizer]([part.parameter for part in replicas.stepped])
    losses, norms, gradients = [], [], []
    share = case.samples // case.dp
    mine = slice(context.at.dp * share, (context.at.dp + 1) * share)
    for step in range(case.steps):
        (ids, labels), positions = case.batch(step), case.positions(step)

        def update() -> None:
            gradients.append(gather_full(step_once, [(part, part.parameter.grad) for part in replicas.stepped]))
            optimizer.step()

        my_positions = None if positions is None else positions[mine]
        result = step_once(ids[mine], labels[mine], my_positions, step=step, update=update)
        losses.append(result.loss)
        norms.append(result.grad_norm)
    outcome = Outcome(losses=losses, norms=norms, gradients=gradients, weights=full_weights(step_once))
    context.close()
    return outcome


def run_on_ranks(case: Case) -> Outcome:
    """The case on as many gloo ranks as it has, each a process of its own; AssertionError where copies differ."""
    return run_ranks(_on_rank, case.world_size, case)[0]


def _on_rank(rank: int, world_size: int, case: Case) -> Outcome:
    return run_layout(case, rank)


def full_weights(step: TrainStep) -> dict[str, Tensor]:
    """The model's weights, on all ranks; as `gather_full`."""
    return gather_full(step, [(part, part.parameter) for part in step.data_parallel.weights])


def gather_full(step: TrainStep, held: Iterable[tuple[Part, Any]]) -> dict[str, Tensor]:
    """Full tensors from every rank's parts of them, on all ranks; copies must agree bit for bit, or AssertionError.

    Collective over the world. A rank's name for a tied weight becomes its owner's.
    """
    table = PartTable(step.model.placements)
    for part, tensor in held:
        table.add(part, tensor.detach().cpu())
    pieces = [
        (step.model.saved_name(tensor_name(key)), placement, tensor.contiguous())
        for key, (tensor, placement) in table.tensors.items()
    ]
    everyone: list[Any] = [pieces]
    if step.context.topology.world_size > 1:
        everyone = [None] * step.context.topology.world_size
        dist.all_gather_object(everyone, pieces)
    full: dict[str, Tensor] = {}
    written: dict[str, Tensor] = {}
    for rank, found in enumerate(everyone):
        for name, placement, tensor in found:
            if name not in full:
                full[name] = torch.zeros(placement.full_shape, dtype=tensor.dtype)
                written[name] = torch.zeros(placement.full_shape, dtype=torch.bool)
            before = placement.take(full[name])
            seen = placement.take(written[name])
            assert torch.equal(before[seen], tensor[seen]), f"rank {rank}'s copy of {name} differs"
            placement.put(tensor, full[name])
            placement.put(torch.ones_like(seen), written[name])
    assert all(mask.all() for mask in written.values()), "a part of a tensor is on no rank"
    return full


def assert_parity(expected: Outcome, actual: Outcome, *, loss: float, tensors: float, floor: float = 1e-6) -> None:
    """Losses within `loss` relative; gradients and weights within `tensors` of max(own norm, `floor` of the whole)."""
    for step, (one, other) in enumerate(zip(expected.losses, actual.losses, strict=True)):
        assert abs(one - other) <= loss * abs(one), f"loss of step {step}: {other!r}, one process {one!r}"
    for step, (ones, others) in enumerate(zip(expected.gradients, actual.gradients, strict=True)):
        _assert_close(ones, others, tensors, floor, f"gradient of step {step}")
    _assert_close(expected.weights, actual.weights, tensors, floor, "updated weight")


def largest_difference(expected: Outcome, actual: Outcome, *, floor: float = 1e-6) -> float:
    """Of all losses, gradients and weights, relative as `assert_parity` has it."""
    found = [abs(one - other) / abs(one) for one, other in zip(expected.losses, actual.losses, strict=True)]
    pairs = [*zip(expected.gradients, actual.gradients, strict=True), (expected.weights, actual.weights)]
    for ones, others in pairs:
        found += [difference for _, difference in _differences(ones, others, floor, "tensor")]
    return max(found)


def _assert_close(
    expected: dict[str, Tensor], actual: dict[str, Tensor], tolerance: float, floor: float, what: str
) -> None:
    for name, difference in _differences(expected, actual, floor, what):
        assert difference <= tolerance, f"{what} {name}: off by {difference:.2e}"


def _differences(
    expected: dict[str, Tensor], actual: dict[str, Tensor], floor: float, what: str
) -> Iterator[tuple[str, float]]:
    """Of each tensor by name, relative to the larger of its own norm and `floor` of the whole."""
    assert expected.keys() == actual.keys(), f"{what}: other names: {sorted(expected.keys() ^ actual.keys())}"
    norms = {name: tensor.norm() for name, tensor in expected.items()}
    total = torch.stack(list(norms.values())).norm()
    for name, tensor in expected.items():
        assert tensor.shape == actual[name].shape, f"{what} {name}: shape {tuple(actual[name].shape)}"
        scale = torch.maximum(norms[name], floor * total)
        yield name, ((tensor - actual[name]).norm() / scale).item()


def _num_devices(case: Case) -> int:
    return torch.cuda.device_count() if case.device == "cuda" else 0


def _snapshot(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().cpu().clone() for name, parameter in parameters.items()}
