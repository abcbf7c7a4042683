"""Where the configuration files lie, which options each group has, and the schemas that Hydra lays under them."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

from gooseslo.schema import data_groups, groups

SCHEMAS: dict[str, dict[str, type]] = {
    "model": {"model": groups.ModelConfig},
    "parallel": {"parallel": groups.ParallelConfig},
    "optimizer": {
        "adamw": groups.AdamWConfig,
        "sgd": groups.SGDConfig,
        "adafactor": groups.AdafactorConfig,
        "torch": groups.TorchOptimizerConfig,
    },
    "lr_schedule": {
        "cosine": groups.CosineScheduleConfig,
        "linear": groups.LinearScheduleConfig,
        "wsd": groups.WSDScheduleConfig,
        "constant": groups.ConstantScheduleConfig,
    },
    "zero": {f"stage{stage}": groups.ZeroConfig for stage in range(4)},
    "fusion": {"off": groups.FusionConfig},
    "data": {
        "stdlib": data_groups.StdlibDataConfig,
        "text": data_groups.TextDataConfig,
        "indexed": data_groups.IndexedDataConfig,
        "instruction": data_groups.InstructionDataConfig,
        "classification": data_groups.ClassificationDataConfig,
        "synthetic": data_groups.SyntheticDataConfig,
    },
    "launcher": {
        "local": groups.LauncherConfig,
        "torchrun": groups.TorchrunLauncherConfig,
        "slurm": groups.SlurmLauncherConfig,
    },
    "logging": {"logging": groups.LoggingConfig},
}
"""Group -> schema name -> class. A YAML of the group names one of them, as `<name>_schema`, in its defaults list."""

RECIPE = "recipe"


def config_folders() -> tuple[Path, Path]:
    """The folders of group YAMLs and of recipes: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    checkout = (package.parent / "configs", package.parent / "recipes")
    # A checkout has train.yaml beside the package; site-packages may hold somebody else's `configs`.
    if (checkout[0] / "train.yaml").is_file() and checkout[1].is_dir():
        return checkout
    return package / "_configs", package / "_recipes"


def group_names() -> list[str]:
    """Every group that `gooseslo train` knows, the recipe last."""
    return [*SCHEMAS, RECIPE]


def group_options(group: str) -> list[str]:
    """The options of a group, sorted."""
    configs, recipes = config_folders()
    folder = recipes if group == RECIPE else configs / group
    return sorted(path.stem for path in folder.glob("*.yaml"))


@cache
def register() -> None:
    """Put every schema and recipe into Hydra's ConfigStore, once."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    for group, classes in SCHEMAS.items():
        for name, schema in classes.items():
            store.store(group=group, name=f"{name}_schema", node=_writable_node(schema))
    ungrouped = {field.name: field for field in dataclasses.fields(groups.TrainJob) if field.name not in SCHEMAS}
    nodes = {name: _default_node(field) for name, field in ungrouped.items()}
    store.store(name="train_schema", node=OmegaConf.create(nodes))
    for path in config_folders()[1].glob("*.yaml"):
        store.store(group=RECIPE, name=path.stem, node=OmegaConf.load(path), package="_global_")


def _default_node(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    assert isinstance(field.default_factory, type)
    return _writable_node(field.default_factory)


def _writable_node(schema: type) -> Any:
    """A structured node without the read-only flag of frozen dataclasses: a YAML is to be laid over it."""
    from omegaconf import DictConfig, OmegaConf

    node = OmegaConf.structured(schema)

    def clear(node: Any) -> None:
        if isinstance(node, DictConfig):
            OmegaConf.set_readonly(node, None)
            for key in node:
                clear(node._get_node(key))

    clear(node)
    return node
