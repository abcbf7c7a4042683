"""The fp32 copies that the optimizer updates in place of 16-bit weights."""

from __future__ import annotations

import torch
from torch import nn

from gooseslo.parallel.data.buffer import GradientBuffer


class Masters:
    """What the optimizer steps, by the weights' names: fp32 masters of 16-bit weights, else the weights themselves.

    A 16-bit weight cannot take an update of less than half its last bit; its master can.
    """

    def __init__(self, weights: dict[str, nn.Parameter], dtype: torch.dtype):
        """`weights` come as they are to be stepped; the model's own are rounded to `dtype` in place."""
        self.weights = self.parameters = weights
        self.are_copies = any(weight.dtype != dtype for weight in weights.values())
        if self.are_copies:
            self.parameters = {name: nn.Parameter(weight.detach()) for name, weight in weights.items()}
            for weight in weights.values():
                weight.data = weight.detach().to(dtype)

    def take_gradients(self, buffer: GradientBuffer) -> None:
        """Make the masters' gradients the weights' own, which are in the masters' dtype."""
        if self.are_copies:
            for name, weight in self.weights.items():
                self.parameters[name].grad = buffer.views[weight]

    @torch.no_grad()
    def write_back(self) -> None:
        """Give the weights the rounded values of their masters; after every update, and after loading."""
        if self.are_copies:
            torch._foreach_copy_(list(self.weights.values()), list(self.parameters.values()))
