"""What `train.precision` means: the dtype of weights, of what the optimizer steps, and of what a stage computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gooseslo.parallel.pipeline.stage import StageModule


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """The dtypes of a run; gradients are accumulated and reduced in `stepped`."""

    weights: torch.dtype
    """Of the model's parameters, and of a checkpoint's model files."""
    stepped: torch.dtype
    """Of what the optimizer updates: the weights, or their masters where this is another dtype."""
    hidden: torch.dtype
    """Of the hidden states that go from stage to stage."""
    logits: torch.dtype
    autocast: torch.dtype | None = None
    """Of matrix products under torch.autocast; None: each operation computes in the dtype of its inputs."""
    words: str
    """For the plan."""


def _same(dtype: torch.dtype, name: str) -> Dtypes:
    return Dtypes(weights=dtype, stepped=dtype, hidden=dtype, logits=dtype, words=name)


DTYPES: Mapping[tuple[str, str], Dtypes] = {
    **{("fp32", mode): _same(torch.float32, "fp32") for mode in ("master", "autocast")},
    **{("fp64", mode): _same(torch.float64, "fp64") for mode in ("master", "autocast")},
    ("bf16", "master"): Dtypes(
        weights=torch.bfloat16,
        stepped=torch.float32,
        hidden=torch.bfloat16,
        logits=torch.bfloat16,
        words="bf16 with fp32 masters",
    ),
    ("fp16", "master"): Dtypes(
        weights=torch.float16,
        stepped=torch.float32,
        hidden=torch.float16,
        logits=torch.float16,
        words="fp16 with fp32 masters",
    ),
    # The residual stream is fp32 under autocast, and travels so: nothing is rounded only because it changes ranks.
    ("bf16", "autocast"): Dtypes(
        weights=torch.float32,
        stepped=torch.float32,
        hidden=torch.float32,
        logits=torch.bfloat16,
        autocast=torch.bfloat16,
        words="fp32 with bf16 autocast",
    ),
    ("fp16", "autocast"): Dtypes(
        weights=torch.float32,
        stepped=torch.float32,
        hidden=torch.float32,
        logits=torch.float16,
        autocast=torch.float16,
        words="fp32 with fp16 autocast",
    ),
}
"""(train.precision, train.bf16_mode) -> what they mean."""


class CastStage(nn.Module):
    """A stage that computes as the dtypes say and gives its output in the dtype that the next stage expects.

    torch's schedule receives into buffers of static dtypes and does not compare them with what was sent.
    """

    def __init__(self, stage: StageModule, dtypes: Dtypes, *, called: nn.Module | None = None):
        """`called`: what computes the stage, where this is not the stage itself."""
        super().__init__()
        self.stage, self.autocast = stage, dtypes.autocast
        self.called = called or stage
        self.output = dtypes.logits if stage.is_last else dtypes.hidden

    def forward(self, x: Tensor, **inputs: Tensor) -> Tensor:
        if self.autocast is None:
            output: Tensor = self.called(x, **inputs)
        else:
            with torch.autocast(x.device.type, dtype=self.autocast):
                output = self.called(x, **inputs)
        return output.to(self.output)
