"""Keys of DeepSpeed's own configuration: which are passed on, and which of ours stands for the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gooseslo.errors import Fault
from gooseslo.schema.keys import DEEPSPEED_KEY, listed, nearest
from gooseslo.schema.quoting import shortened

ZERO = "zero_optimization"
PASSED = (
    ZERO,
    "comms_logger",
    "communication_data_type",
    "disable_allgather",
    "dump_state",
    "gradient_predivide_factor",
    "memory_breakdown",
    "prescale_gradients",
)
OURS: Mapping[str, str] = {
    "activation_checkpointing": "train.activation_checkpointing",
    "amp": "train.precision",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "gradient_accumulation_steps": "train.global_batch_size",
    "gradient_clipping": "train.clip_grad_norm",
    "optimizer": "optimizer",
    "scheduler": "lr_schedule",
    "tensor_parallel": "parallel.tp",
    "torch_autocast": "train.bf16_mode",
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
}
OUR_ZERO: Mapping[str, str] = {
    "stage": "zero.stage",
    "zero_hpz_partition_size": "zero.backend=torch zero.shard_size",
    "mics_shard_size": "zero.backend=torch zero.shard_size",
    "cpu_offload": "zero.backend=torch zero.offload",
    "offload_optimizer": "zero.backend=torch zero.offload",
    "offload_param": "zero.backend=torch zero.offload",
}
"""What this project has a key for, and that key."""


def check_deepspeed_keys(settings: Mapping[str, Any], *, stage: int) -> list[Fault]:
    """What cannot be passed on to DeepSpeed; the values of ZeRO's own keys are DeepSpeed's to check."""
    faults = []
    for name, value in settings.items():
        if name == ZERO and isinstance(value, dict):
            faults += _check_zero_keys(value, stage)
        elif name == ZERO:
            faults.append(
                Fault(key=f"{DEEPSPEED_KEY}.{ZERO}", value=shortened(value), rule="is a mapping of DeepSpeed's keys")
            )
        elif name in OURS:
            faults.append(_said_by_ours(name, value, OURS[name]))
        elif name not in PASSED:
            closest = nearest(name, PASSED)
            way_out = f"nearest: {closest}; " if closest else ""
            rule = "no key of DeepSpeed that has a meaning here"
            faults.append(
                Fault(key=f"{DEEPSPEED_KEY}.{name}", value=shortened(value), rule=rule, way_out=way_out + _CHOICES)
            )
    return faults


_CHOICES = f"choices: {listed(PASSED)}"


def _check_zero_keys(settings: Mapping[str, Any], stage: int) -> list[Fault]:
    faults = [
        _said_by_ours(f"{ZERO}.{name}", value, OUR_ZERO[name]) for name, value in settings.items() if name in OUR_ZERO
    ]
    if settings.get("overlap_comm") and stage != 2:
        rule = f"needs zero.stage=2, and it is {stage}"
        faults.append(
            Fault(key=f"{DEEPSPEED_KEY}.{ZERO}.overlap_comm", value="true", rule=rule, way_out="leave it out")
        )
    return faults


def _said_by_ours(name: str, value: object, ours: str) -> Fault:
    return Fault(
        key=f"{DEEPSPEED_KEY}.{name}", value=shortened(value), rule=f"is said by {ours}", way_out=f"give {ours}"
    )
