"""The house rules that a machine can check: who imports whom, and what is written where."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gooseslo"

# room -> the rooms whose modules it may import
ROOMS: dict[str, set[str]] = {"errors": set(), "staging": set()}
ROOMS["schema"] = ROOMS["policies"] = ROOMS["kernels"] = {"errors"}
ROOMS["data"] = {"errors", "staging"}
ROOMS["parallel"] = {"errors", "schema", "policies", "kernels"}
ROOMS["engine"] = ROOMS["parallel"] | {"parallel", "data", "staging"}
ROOMS["serve"] = ROOMS["api"] = ROOMS["testing"] = ROOMS["engine"] | {"engine"}
ROOMS["cli"] = ROOMS["__main__"] = ROOMS["engine"] | {"engine", "serve", "api", "testing", "cli"}

# library -> the files and folders that may import it
CONFINED = {
    "hydra": ("schema/", "cli.py"),
    "omegaconf": ("schema/", "cli.py"),
    "wandb": ("engine/trackers/",),
    "deepspeed": ("engine/deepspeed.py",),
}
# what is not used costs nothing: imported where it is, in a function
ON_DEMAND = ("wandb", "deepspeed", "tensorboard", "torch.utils.tensorboard")
WITHOUT_TORCH = ("schema/", "policies/", "errors.py", "cli.py")
MODEL_CLASS = re.compile(r"^(AutoModel\w*|\w+(LMHead|For\w+|[a-z0-9])Model|\w+For[A-Z]\w+)$")
# the last of them is what everything is held against: plain transformers
MODEL_CLASSES = (
    "engine/hf.py",
    "engine/generate.py",
    "engine/checkpoint/",
    "policies/from_hf.py",
    "serve/",
    "testing/parity.py",
)
BASE_CLASSES = {"PreTrainedModel"}
# the last two start processes themselves, with the environment that they were given; DeepSpeed reads its rank there
ENVIRONMENT = ("cli.py", "engine/launcher.py", "engine/worker.py", "engine/deepspeed.py")
ENVIRONMENT += ("testing/ranks.py", "data/preprocess/pool.py")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|work|Users|mnt|scratch)/\w")


def violations(name: str, source: str) -> list[str]:
    """What breaks a rule in a module of the package; `name` is its path below gooseslo/."""
    tree = ast.parse(source)
    found = [*_imports(name, tree), *_calls(name, tree), *_sizes(source, tree)]
    if name.rpartition("/")[2] in ("utils.py", "util.py", "helpers.py", "misc.py"):
        found.append("a module is named for what it is about")
    if source.strip() and not ast.get_docstring(tree):
        found.append("the first line of a module says why it exists")
    if match := MACHINE_PATH.search(source):
        found.append(f"a path of one machine: {match.group()}")
    return found


def _imports(name: str, tree: ast.Module) -> Iterator[str]:
    room = name.split("/")[0].removesuffix(".py")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                yield "imports are absolute"
                continue
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            yield from _one_import(name, room, module)
    for module in _top_level_imports(tree):
        if module.split(".")[0] in ("torch", "transformers") and name.startswith(WITHOUT_TORCH):
            yield f"{module} is imported where torch must not be"
        if module.startswith(ON_DEMAND):
            yield f"{module} is imported with the module, not on demand"


def _one_import(name: str, room: str, module: str) -> Iterator[str]:
    library, *rest = module.split(".")
    if library == "gooseslo":
        other = rest[0] if rest else ""
        if other in ROOMS and other != room and room in ROOMS and other not in ROOMS[room]:
            yield f"{room} must not know {other}"
    if library in CONFINED and not name.startswith(CONFINED[library]):
        yield f"{library} is imported outside {CONFINED[library]}"
    if library == "transformers" and not name.startswith(MODEL_CLASSES) and _names_a_model_class(rest):
        yield f"the model class {rest[-1]} is imported outside {MODEL_CLASSES}"


def _names_a_model_class(parts: list[str]) -> bool:
    if any(part.startswith("modeling_") for part in parts):
        return True
    return bool(parts) and parts[-1] not in BASE_CLASSES and MODEL_CLASS.match(parts[-1]) is not None


def _top_level_imports(tree: ast.Module) -> Iterator[str]:
    """Modules imported when the module is; not those inside functions or for type checkers alone."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def _calls(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield "a bare print"
        is_os = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        if is_os and node.attr in ("environ", "getenv", "putenv") and name not in ENVIRONMENT:
            yield f"the environment is read outside {ENVIRONMENT}"
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and {a.name for a in node.names} & {"environ", "getenv"}
        ):
            yield "the environment is imported by name"


def _sizes(source: str, tree: ast.Module) -> Iterator[str]:
    num_lines = len(source.splitlines())
    if num_lines >= MAX_FILE_LINES:
        yield f"the file has {num_lines} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines >= MAX_FUNCTION_LINES:
                yield f"{node.name} has {num_lines} lines"


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_module_keeps_the_rules(path):
    assert violations(str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")) == []


def test_every_room_is_known():
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES} - {"__init__"}
    assert rooms <= set(ROOMS)


PLANTED = {
    "parallel knows engine": ("parallel/mesh.py", "from gooseslo.engine.plan import Plan", "must not know engine"),
    "by package": ("parallel/mesh.py", "from gooseslo import engine", "must not know engine"),
    "data knows parallel": ("data/order/loader.py", "import gooseslo.parallel.mesh", "must not know parallel"),
    "inside a function": ("kernels/k.py", "def f():\n    from gooseslo.parallel import mesh", "must not know parallel"),
    "engine knows cli": ("engine/run.py", "from gooseslo.cli import main", "must not know cli"),
    "engine knows testing": ("engine/run.py", "from gooseslo.testing.ranks import run_ranks", "must not know testing"),
    "relative": ("engine/run.py", "from . import plan", "absolute"),
    "hydra": ("engine/run.py", "from hydra import compose", "hydra is imported outside"),
    "omegaconf": ("data/text.py", "import omegaconf", "omegaconf is imported outside"),
    "torch in a schema": ("schema/groups.py", "import torch", "torch must not be"),
    "torch in the command line": ("cli.py", "import torch", "torch must not be"),
    "wandb": ("engine/loop.py", "def f():\n    import wandb", "wandb is imported outside"),
    "tracker at once": ("engine/trackers/w.py", "import wandb", "not on demand"),
    "writer at once": ("engine/loop.py", "from torch.utils.tensorboard import SummaryWriter", "not on demand"),
    "automatic class": ("engine/plan.py", "from transformers import AutoModelForCausalLM", "model class"),
    "model class": ("engine/plan.py", "from transformers import GPT2LMHeadModel", "model class"),
    "model module": ("parallel/names.py", "import transformers.models.gpt2.modeling_gpt2", "model class"),
    "environment": ("engine/loop.py", "import os\nx = os.environ.get('X')", "environment is read"),
    "getenv": ("engine/loop.py", "import os\nx = os.getenv('X')", "environment is read"),
    "environ by name": ("cli.py", "from os import environ", "by name"),
    "print": ("engine/loop.py", "print('step')", "bare print"),
    "long file": ("engine/loop.py", "x = 1\n" * 398, "400 lines"),
    "long function": ("engine/loop.py", "def f():\n" + "    x = 1\n" * 59, "f has 60 lines"),
    "utils": ("engine/utils.py", "x = 1", "named for"),
    "machine path": ("engine/loop.py", f"x = '/{'home'}/ann/runs'", "path of one machine"),
}


@pytest.mark.parametrize("name, source, message", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_found(name, source, message):
    found = violations(name, f'"""Why."""\n{source}\n')
    assert len(found) == 1 and message in found[0]


def test_a_missing_reason_is_found():
    assert violations("engine/loop.py", "x = 1\n") == ["the first line of a module says why it exists"]


@pytest.mark.parametrize(
    "name, source",
    [
        ("engine/run.py", "from gooseslo.parallel.mesh import Topology\nfrom gooseslo import __version__"),
        ("cli.py", "from gooseslo.testing.parity import assert_parity\nimport os\nx = os.environ.get('X')"),
        ("schema/compose.py", "from hydra import compose\nfrom omegaconf import OmegaConf"),
        ("engine/hf.py", "from transformers import AutoModelForCausalLM"),
        ("engine/plan.py", "from transformers import PretrainedConfig, PreTrainedModel"),
        ("engine/plan.py", "from transformers.models.auto.configuration_auto import CONFIG_MAPPING"),
        ("parallel/mesh.py", "import torch"),
        ("policies/p.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    ],
)
def test_what_is_allowed_is_not_reported(name, source):
    assert violations(name, f'"""Why."""\n{source}\n') == []
