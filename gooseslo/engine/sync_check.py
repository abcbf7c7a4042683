"""`debug.check_sync`: what several ranks hold alike is proven equal, bit by bit, around every step."""

from __future__ import annotations

from gooseslo.engine.checkpoint.copies import Difference, Key, boxes_by_key, differences, shared_keys
from gooseslo.engine.checkpoint.manifest import MASTER
from gooseslo.engine.checkpoint.parts import PartTable
from gooseslo.engine.checkpoint.ranks import Ranks
from gooseslo.engine.model import LocalModel
from gooseslo.parallel.data.strategy import DataParallel
from gooseslo.parallel.mesh import Topology

GRADIENT = "gradient"
_NUM_NAMED = 3


class OutOfSyncError(Exception):
    """Ranks hold different bits of what they should hold alike: a fault of the program, or of a device."""


class SyncCheck:
    """Compares the replicas of all data-parallel ranks, tied weights, and what tensor-parallel ranks hold in common.

    Each rank sends a digest of each of its tensors; only of one that differs are elements sent. The methods are
    collective over all ranks and raise OutOfSyncError on all of them.
    """

    def __init__(self, topology: Topology):
        self.topology = topology
        self.ranks = Ranks()
        self._shared: dict[bool, set[Key]] = {}
        """With gradients and without: the names and boxes are the same in every step."""

    def before_update(
        self, step: int, model: LocalModel, data_parallel: DataParallel, *, with_gradients: bool = True
    ) -> None:
        """Weights, masters, and the gradients that are about to change them."""
        self._compare(f"before the update of step {step}", model, data_parallel, with_gradients=with_gradients)

    def after_update(self, step: int, model: LocalModel, data_parallel: DataParallel) -> None:
        """Weights and masters; also where the update was skipped."""
        self._compare(f"after the update of step {step}", model, data_parallel, with_gradients=False)

    def _compare(self, when: str, model: LocalModel, data_parallel: DataParallel, *, with_gradients: bool) -> None:
        if self.ranks.size == 1:
            return
        table = PartTable(model.placements)
        for part in data_parallel.weights:
            table.add(part, part.parameter.detach())
        if data_parallel.are_masters:
            for part in data_parallel.stepped:
                table.add(part, part.parameter.detach(), what=MASTER)
        for part in data_parallel.stepped if with_gradients else ():
            if part.parameter.grad is not None:
                table.add(part, part.parameter.grad, what=GRADIENT)
        held = boxes_by_key(table.tensors, model.aliases)
        # Asked of the caller, not of what is held: a rank that steps nothing must take part in the same messages.
        if with_gradients not in self._shared:
            self._shared[with_gradients] = shared_keys(self.ranks, held)
        found = differences(self.ranks, held, self._shared[with_gradients])
        if found:
            raise OutOfSyncError(self._describe(when, found))

    def _describe(self, when: str, found: list[Difference]) -> str:
        worst = max(found, key=lambda each: each.largest)
        others = [_named(each) for each in found if each is not worst]
        more = f"; also {', '.join(others[:_NUM_NAMED])}" if others else ""
        more += f" and {len(others) - _NUM_NAMED} more" if len(others) > _NUM_NAMED else ""
        copies = " | ".join(", ".join(str(self.topology.coordinates(rank)) for rank in copy) for copy in worst.copies)
        return (
            f"{when}, ranks differ in what they should hold alike: {_named(worst)} by up to {worst.largest:.3g}, "
            f"its copies are those of {copies}{more} (debug.check_sync)"
        )


def _named(difference: Difference) -> str:
    """A tensor in words: the gradient of NAME, the master of NAME, NAME."""
    what, slash, name = difference.name.rpartition("/")
    return f"the {what} of {name}" if slash else difference.name
