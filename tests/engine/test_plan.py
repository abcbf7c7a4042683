"""The plan of a run, and that it and all else sent to the workers survives the way to a spawned process."""

import pickle
from pathlib import Path

from gooseslo.engine.plan import make_plan
from gooseslo.engine.sources import prepare_data
from gooseslo.schema.compose import compose_train
from gooseslo.schema.dump import dump_yaml


def test_gpt2_on_two_by_two_leaves_each_rank_a_third_of_the_parameters():
    """A quarter would be the least; the tied table is on both ends of the pipeline."""
    plan = make_plan(compose_train(["model=gpt2", "parallel.tp=2", "parallel.pp=2", "device=cpu"]), num_devices=0)
    assert plan.num_parameters == 124_439_808
    assert set(plan.local_parameters) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert max(plan.local_parameters.values()) <= 0.34 * plan.num_parameters
    assert sum(plan.local_parameters.values()) >= plan.num_parameters


def test_what_workers_are_sent_can_be_pickled(tmp_path):
    """Workers on CUDA are spawned: they get everything through a pickle."""
    (tmp_path / "a.txt").write_text("goose honk pond egg reed wing nest\n" * 200, encoding="utf-8")
    text = ["data=text", f"data.train={tmp_path / 'a.txt'}", f"data.valid=['{tmp_path / 'a.txt'}']"]
    job = compose_train([*text, "optimizer=sgd", "parallel.partition=[3,3]", "parallel.pp=2", "data.vocab_size=300"])
    plan = make_plan(job, num_devices=0)
    data = prepare_data(
        job.data, seed=0, model_vocab_size=8192, cache_dir=tmp_path / "cache", progress=lambda message: None
    )
    plan = plan.fitted_to(end_of_text=data.eos_token_id)
    start = Path("runs/first/checkpoints/step-00000100")
    other_job, other_plan, other_data, other_start = pickle.loads(pickle.dumps((job, plan, data, start)))

    assert (other_job, other_start) == (job, start) and type(other_job.optimizer) is type(job.optimizer)
    assert dump_yaml(other_job) == dump_yaml(job)
    assert str(other_plan) == str(plan) and other_plan.config.to_dict() == plan.config.to_dict()
    assert other_data.eos_token_id == data.eos_token_id is not None
    one, other = (source.dataset("train", 32) for source in (data, other_data))
    assert one.num_samples == other.num_samples > 0
    assert one.sample(0).labels.tolist() == other.sample(0).labels.tolist()
