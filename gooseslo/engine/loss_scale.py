"""The factor on fp16's loss that keeps small gradients from becoming zero, and how it is found.

Source: Micikevicius et al., "Mixed Precision Training" (arXiv:1710.03740), sections 3.2 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FIRST_SCALE = 65536.0
"""2^16, the first guess; powers of two scale without rounding."""
GROWTH_STEPS = 2000
"""After so many updates in a row the scale is doubled."""
LEAST_SCALE = 1.0


@dataclass
class LossScale:
    """The scale of this rank, equal on all: what changes it is agreed by them."""

    value: float = 1.0
    is_used: bool = False
    """The precision is fp16."""
    is_dynamic: bool = False
    good_steps: int = 0
    """Updates since the scale last changed."""

    @classmethod
    def of(cls, precision: str, fixed: float | None) -> LossScale:
        """As the configuration asks; 1 where the precision is not fp16."""
        if precision != "fp16":
            return cls()
        return cls(value=fixed or FIRST_SCALE, is_used=True, is_dynamic=fixed is None)

    @property
    def may_fall(self) -> bool:
        """A gradient that is not finite may be finite under a smaller scale."""
        return self.is_dynamic and self.value > LEAST_SCALE

    def fell(self) -> None:
        """A gradient overflowed, and the update was skipped."""
        self.value = max(LEAST_SCALE, self.value / 2)
        self.good_steps = 0

    def passed(self) -> None:
        """An update was done."""
        if not self.is_dynamic:
            return
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.value, self.good_steps = self.value * 2, 0

    def state(self) -> dict[str, Any] | None:
        """For a checkpoint; None where nothing is found while training."""
        return {"value": self.value, "good_steps": self.good_steps} if self.is_dynamic else None

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint; one of a run without a scale leaves the first guess."""
        if self.is_dynamic and state is not None:
            self.value, self.good_steps = float(state["value"]), int(state["good_steps"])
