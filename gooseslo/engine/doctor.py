"""What works on this machine: versions, devices, a real collective of one process, kernel back ends."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

PACKAGES = (
    "torch",
    "transformers",
    "hydra-core",
    "omegaconf",
    "deepspeed",
    "safetensors",
    "tokenizers",
    "numpy",
    "rich",
)
KERNEL_PACKAGES = ("triton", "apex")
GIB = 1024**3


def doctor(console: Console) -> int:
    """Print the table; 0 where training can run (torch and a collective back end work), else 1."""
    works = {backend: _collective(backend) for backend in _backends()}
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in [*_versions(), *_machine(), *_devices()]:
        table.add_row(name, value)
    for backend, failure in works.items():
        table.add_row(f"{backend} all-reduce", failure or "works")
    for package in KERNEL_PACKAGES:
        found = importlib.util.find_spec(package) is not None
        table.add_row(package, "importable" if found else "not installed (optional)")
    console.print(table)
    return 0 if any(failure is None for failure in works.values()) else 1


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    for package in PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed"


def _machine() -> Iterator[tuple[str, str]]:
    yield "system", platform.platform()
    yield "CPU cores", f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}"
    if hasattr(os, "sysconf"):
        yield "memory", f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / GIB:.1f} GiB"


def _devices() -> Iterator[tuple[str, str]]:
    if not torch.cuda.is_available():
        yield "CUDA devices", "none: training runs on the CPU"
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}", f"{properties.name}, {properties.total_memory / GIB:.0f} GiB"


def _backends() -> list[str]:
    backends = ["gloo"] if dist.is_gloo_available() else []
    return [*backends, "nccl"] if dist.is_nccl_available() and torch.cuda.is_available() else backends


def _collective(backend: str) -> str | None:
    """All-reduce in a group of this one process: None where it works, else what went wrong, in one line."""
    device = torch.device("cuda" if backend == "nccl" else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        try:
            store = dist.FileStore(str(Path(folder) / "store"), 1)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
            total = torch.ones(4, device=device)
            dist.all_reduce(total)
            return None if total.sum().item() == 4 else "gives a wrong sum"
        except (RuntimeError, OSError, ValueError) as error:
            return f"fails: {str(error).splitlines()[0]}"
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
