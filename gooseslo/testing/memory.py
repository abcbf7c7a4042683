"""Bytes of the tensors alive in this process, on any device: so that what a sharing saves is counted, not believed.

A storage counts once, however many views it has, and with its present size: FSDP2 frees one by making it empty.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Of the storages of `tensors`, shared ones once."""
    return sum({id(storage): storage.nbytes() for storage in map(_storage, tensors)}.values())


class Alive:
    """Counts what has come alive since this was made: a process of several tests keeps something of each."""

    def __init__(self) -> None:
        self._before = {id(storage): storage for storage in map(_storage, _alive())}  # held, so that no id comes again

    def parameter_bytes(self) -> int:
        """Of everything that is a parameter: weights, and what an optimizer steps in their place."""
        return num_bytes(tensor for tensor in self._since() if isinstance(tensor, nn.Parameter))

    def gradient_bytes(self) -> int:
        """Of all gradients, with the flat tensors that they are views of."""
        leaves = [tensor for tensor in self._since() if tensor.is_leaf]
        return num_bytes(leaf.grad for leaf in leaves if leaf.grad is not None)

    def counts(self, storage: torch.UntypedStorage) -> bool:
        """Whether it was not there before."""
        return id(storage) not in self._before

    def _since(self) -> list[Tensor]:
        return [tensor for tensor in _alive() if self.counts(_storage(tensor))]


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Of the optimizer's state: the moments; counts of steps too."""
    return num_bytes(leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, Tensor))


class PeakBytes(TorchDispatchMode):
    """The most bytes, of what `alive` counts, after any operation inside, the backward pass included; not collective.

    What an operation frees before it returns is not seen.
    """

    def __init__(self, alive: Alive) -> None:
        super().__init__()
        self.most = 0
        self._alive = alive
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sizes: dict[int, int] = {}
        self._total = 0
        """At least what is alive: that a storage was made empty shows only when it is looked at."""

    def __enter__(self) -> PeakBytes:
        for tensor in _alive():
            self._see(tensor)
        self.most = self.now()
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        if self._total > self.most:
            self.most = max(self.most, self.now())
        return result

    def now(self) -> int:
        """Bytes alive, of what was alive at the beginning and what operations inside have made."""
        for key, reference in list(self._storages.items()):
            storage = reference()
            if storage is not None:
                self._set_size(key, storage.nbytes())
        return self._total

    def _see(self, tensor: Tensor) -> None:
        storage = _storage(tensor)
        if not self._alive.counts(storage):
            return
        key = id(storage)
        if key not in self._storages:
            self._storages[key] = weakref.ref(storage, lambda _: self._forget(key))
        self._set_size(key, storage.nbytes())

    def _set_size(self, key: int, size: int) -> None:
        self._total += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def _forget(self, key: int) -> None:
        del self._storages[key]
        self._total -= self._sizes.pop(key)


def _alive() -> list[Tensor]:
    """Every tensor that Python knows, on a device with memory."""
    gc.collect()
    found = [item for item in gc.get_objects() if isinstance(item, Tensor)]
    return [tensor for tensor in found if tensor.device.type != "meta"]


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    """One object for a storage as long as this lives."""
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).untyped_storage()
