"""What a run's own save says on the terminal and in the log when the ranks' copies of a parameter differ."""

import logging
from dataclasses import replace

import pytest
import torch

from gooseslo.engine.build import build_trainer
from gooseslo.engine.loop import Position
from gooseslo.engine.plan import make_plan
from gooseslo.engine.sources import prepare_data
from gooseslo.engine.worker import Duties, Worker
from gooseslo.schema.data_groups import SyntheticDataConfig
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks


def said_at_a_save(rank, world_size, case, run_dir, changed):
    """The terminal's text and the log's, after a step and a save; rank 1's copy of `changed` was moved by 0.25."""
    job = replace(case.job(), data=SyntheticDataConfig(samples=16))
    plan = make_plan(job, num_devices=0)
    data = prepare_data(job.data, seed=0, model_vocab_size=96, cache_dir=run_dir, progress=lambda message: None)
    log = logging.FileHandler(run_dir / f"log-{rank}")
    logging.getLogger("gooseslo").addHandler(log)
    with (run_dir / f"console-{rank}").open("w") as console:
        worker = Worker(
            rank=rank,
            local_rank=rank,
            world_size=world_size,
            run_dir=run_dir,
            device=torch.device("cpu"),
            console=console if rank == 0 else None,
            duties=Duties(rank),
        )
        trainer, _ = build_trainer(worker, job, plan, data, start=None)
        step = trainer.train_step
        optimizer, parameters = trainer.optimizer, step.model.parameters()
        share = case.samples // case.dp
        mine = slice(step.context.at.dp * share, (step.context.at.dp + 1) * share)
        ids, labels = case.batch(0)
        step(ids[mine], labels[mine], step=0, update=optimizer.step)
        if rank == 1 and changed:
            with torch.no_grad():
                parameters[changed].view(-1)[0] += 0.25
        trainer.save(Position(step=1))
        for observer in trainer.observers:
            observer.close()
    logging.getLogger("gooseslo").removeHandler(log)
    step.context.close()
    return [(run_dir / f"{kind}-{rank}").read_text() for kind in ("console", "log")]


@pytest.mark.parametrize(
    ("layout", "changed", "name"),
    [
        ({"tp": 2}, "transformer.h.1.ln_2.bias", "transformer.h.1.ln_2.bias"),
        ({"pp": 2}, "lm_head.weight", "transformer.wte.weight"),
        ({"tp": 2}, None, None),
        ({"pp": 2}, None, None),
    ],
)
def test_copies_that_differ_are_said_on_the_terminal_and_in_the_log(tmp_path, layout, changed, name):
    case = Case(fields=tiny_fields("gpt2", n_layer=2), samples=8, precision="fp32", **layout)
    (console, log), others = run_ranks(said_at_a_save, 2, case, tmp_path, changed)
    assert others == ["", ""]
    if changed is None:
        assert console == log == ""
    else:
        assert console == f"warning: {log}" and console.count("\n") == 1
        assert f"in 1 parameter: {name}; the largest difference is 0.25" in log
    assert (tmp_path / "checkpoints" / "step-00000001" / "manifest.json").exists()
