"""When the loop evaluates, saves and stops, and what a step without a finite gradient does."""

import math
import signal
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from gooseslo.engine import loop, metrics
from gooseslo.engine.bad_steps import Skip
from gooseslo.engine.build import build_step
from gooseslo.engine.loop import LoopSettings, Position, Trainer
from gooseslo.engine.metrics import describer, eval_record
from gooseslo.engine.plan import make_plan
from gooseslo.engine.requests import Requests
from gooseslo.engine.step import EvalSums, StepResult
from gooseslo.parallel.mesh import Coordinates, ParallelContext
from gooseslo.parallel.pipeline.callbacks import Callbacks
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks


class FakeStep:
    """A step whose gradient is not finite at the given positions of the data."""

    device = torch.device("cpu")
    callbacks = Callbacks()

    def __init__(self, bad=(), overflows=()):
        self.bad, self.overflows = {*bad, *overflows}, set(overflows)
        self.seen, self.evaluated = [], 0

    def __call__(self, input_ids, labels, position_ids, *, step, update):
        skipped = step in self.bad
        self.seen.append((step, int(input_ids[0, 0])))
        if not skipped:
            update()
        return StepResult(
            loss=2.0,
            grad_norm=math.nan if skipped else 1.0,
            num_tokens=8,
            skip=self.why(step) if skipped else None,
        )

    def why(self, step):
        overflow = step in self.overflows
        return Skip(
            is_overflow=overflow, bad_losses=(), num_micro_batches=2, gradients_are_finite=False, at=Coordinates()
        )

    def evaluate(self, input_ids, labels, position_ids):
        self.evaluated += 1
        return EvalSums(6.0, 4)

    def stage_seconds(self):
        return [0.25, 0.5]


def batch_of(input_ids, labels=None):
    ids = input_ids[:, 0].long()
    return SimpleNamespace(input_ids=input_ids, labels=labels, position_ids=None, sample_ids=ids)


class Loader(SimpleNamespace):
    def batch(self, consumed):
        return batch_of(torch.full((2, 4), consumed))

    def close(self):
        pass


def trainer(
    step, *, last_step=6, eval_every=0, save_every=0, save_at_end=True, requests=None, while_saving=None, **more
):
    events, lrs = [], []
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer.step = lambda: lrs.append(optimizer.param_groups[0]["lr"])

    def observe(record):
        events.append((record["kind"], record.get("step"), record.get("skipped"), record.get("loss")))

    observe.close = lambda: events.append("closed")
    batch = batch_of(torch.zeros(2, 4))
    evaluation = type("Evaluation", (), {"num_samples": 4, "__iter__": lambda self: iter([batch, batch])})()
    made = Trainer(
        train_step=step,
        optimizer=optimizer,
        lr_at=lambda updates: float(updates),
        train_loader=Loader(global_batch_size=2),
        eval_loader=evaluation,
        settings=LoopSettings(
            last_step=last_step,
            eval_every=eval_every,
            save_every=save_every,
            save_at_end=save_at_end,
            max_skipped_steps=3,
        ),
        save=lambda position: (while_saving and while_saving()) or f"step-{position.step}",
        describe=lambda record: {"kind": "train", **vars(record)},
        observers=[observe],
        requests=requests,
        **more,
    )
    return made, events, lrs


def test_it_evaluates_and_saves_when_due_and_at_the_end():
    made, events, _ = trainer(FakeStep(), last_step=5, eval_every=2, save_every=3)
    position = made.fit(Position())
    kinds = [(kind, step) for kind, step, *_ in events[:-1]]
    assert [step for kind, step in kinds if kind == "eval"] == [2, 4, 5]
    assert [step for kind, step in kinds if kind == "save"] == [3, 5]
    assert events[-1] == "closed"
    assert position == Position(step=5, updates=5, consumed_samples=10, consumed_tokens=40)
    assert eval_record(step=5, split="valid", loss=1.5, samples=4)["loss"] == 1.5
    assert [loss for kind, _, _, loss in events[:-1] if kind == "eval"] == [1.5] * 3


def test_an_evaluation_that_predicts_nothing_has_no_loss_and_says_so():
    """A loss of 0 would be the best of all."""
    step = FakeStep()
    step.evaluate = lambda *batch: EvalSums(0.0, 0)
    made, _, _ = trainer(step, last_step=1)
    records = []
    made.observers[0] = records.append
    made._evaluate(Position(step=1), "valid", made.eval_loader)
    assert [record["kind"] for record in records] == ["warning"] and "nothing is predicted" in records[0]["text"]


def test_a_skipped_step_moves_the_data_but_neither_weights_nor_rate():
    step = FakeStep(bad={1, 2})
    made, events, lrs = trainer(step, last_step=4)
    position = made.fit(Position())
    assert [skipped for kind, _, skipped, _ in events[:-1] if kind == "train"] == [False, True, True, False]
    assert step.seen == [(0, 0), (1, 2), (2, 4), (3, 6)]
    assert lrs == [0.0, 1.0]
    assert position == Position(step=4, updates=2, consumed_samples=8, consumed_tokens=32, skipped=2)


def test_ranks_part_before_any_closes_its_observers_and_not_where_one_failed():
    made, events, _ = trainer(FakeStep(), last_step=1, part=lambda stop_signal: events.append("parted"))
    made.fit(Position())
    assert events[-2:] == ["parted", "closed"]
    made, events, _ = trainer(FakeStep(bad=range(9)), part=lambda stop_signal: events.append("parted"))
    with pytest.raises(FloatingPointError):
        made.fit(Position())
    assert events[-1] == "closed" and "parted" not in events


def test_too_many_skipped_steps_in_a_row_end_the_run():
    made, events, _ = trainer(FakeStep(bad=[1, 2, *range(4, 100)]), last_step=100)
    with pytest.raises(FloatingPointError, match=r"3 steps in a row .* the last of them step 7 \(.*skipped_steps=3"):
        made.fit(Position())
    assert events[-1] == "closed" and [step for kind, step, *_ in events[:-1] if kind == "save"] == [7]


def test_a_resumed_run_counts_on_and_an_overflow_is_not_counted():
    made, _, _ = trainer(FakeStep(bad=[4, 5], overflows=[6]), last_step=7)
    position = made.fit(Position())
    assert (position.bad_in_a_row, position.skipped) == (2, 3)
    made, _, _ = trainer(FakeStep(bad=[7]), last_step=9)
    with pytest.raises(FloatingPointError, match=r"3 steps in a row .* step 8"):
        made.fit(position)
    made, _, _ = trainer(FakeStep(bad=[8]), last_step=9)
    assert made.fit(position).bad_in_a_row == 1, "a good step between them begins a new row"


def test_a_run_that_only_overflows_goes_on_and_says_nothing_of_its_data():
    made, events, _ = trainer(FakeStep(overflows=range(9)), last_step=9)
    assert made.fit(Position()).skipped == 9
    assert "warning" not in [event[0] for event in events]


def test_a_bad_step_is_told_with_its_samples():
    made, _, _ = trainer(FakeStep(bad=[3]), last_step=4)
    lines = []
    made.observers.append(
        type("Lines", (), {"__call__": lambda self, line: lines.append(line), "close": lambda self: 0})()
    )
    made.fit(Position())
    (warning,) = [line["text"] for line in lines if line["kind"] == "warning"]
    assert "step 4 is skipped: every loss is finite, but the gradient is not, on tp=0 pp=0 dp=0" in warning
    assert "samples 6, 6; the step had positions 6 to 7 of the data's order" in warning


def test_every_observer_is_closed_whatever_another_does():
    made, events, _ = trainer(FakeStep(), last_step=1)

    def broken(record):
        """Takes everything, and cannot be closed."""

    def fail():
        raise OSError("no space")

    broken.close = fail
    made.observers = [made.observers[0], broken]
    with pytest.raises(OSError):
        made.fit(Position())
    assert events[-1] == "closed"


def test_it_goes_on_from_a_position():
    step = FakeStep()
    made, _, lrs = trainer(step, last_step=4)
    made.fit(Position(step=2, updates=1, consumed_samples=4, consumed_tokens=16))
    assert step.seen == [(2, 4), (3, 6)] and lrs == [1.0, 2.0]


class Signals:
    """A rank's signals: `number` comes in the step with the index `at`."""

    def __init__(self, step, *, at=math.inf, number=signal.SIGTERM):
        self.step, self.at, self.number = step, at, number
        self.received = 0

    def __call__(self):
        return self.received or (self.number if len(self.step.seen) > self.at else 0)


def kinds_and_steps(events):
    return [(kind, step) for kind, step, *_ in events[:-1]]


def test_a_signal_saves_the_running_step_and_ends_the_run_without_an_evaluation():
    step = FakeStep()
    requests = Requests(signal_number=Signals(step, at=2))
    made, events, _ = trainer(step, last_step=9, eval_every=3, save_at_end=False, requests=requests)
    assert made.fit(Position()).step == 3 and made.stop_signal == signal.SIGTERM
    assert kinds_and_steps(events)[-2:] == [("train", 3), ("save", 3)]
    assert events[-1] == "closed"


@pytest.mark.parametrize("file", [False, True], ids=["nothing saved yet", "saved for the file"])
def test_a_signal_during_an_evaluation_abandons_it_and_the_step_is_saved_once(file, tmp_path):
    step = FakeStep()
    if file:
        (tmp_path / "SAVE_NOW").touch()
    requests = Requests(signal_number=lambda: signal.SIGTERM if step.evaluated == 1 else 0, run_dir=tmp_path)
    made, events, _ = trainer(step, last_step=9, eval_every=1, save_at_end=False, requests=requests)
    assert made.fit(Position()).step == 1 and made.stop_signal == signal.SIGTERM
    assert kinds_and_steps(events) == [("train", 1), ("save", 1)]
    assert step.evaluated == 1, "of two batches"


def test_a_step_is_saved_once_where_a_signal_and_the_interval_ask_for_it():
    step = FakeStep()
    requests = Requests(signal_number=Signals(step, at=2))
    made, events, _ = trainer(step, last_step=9, save_every=3, requests=requests)
    made.fit(Position())
    assert [step for kind, step in kinds_and_steps(events) if kind == "save"] == [3]


def test_a_signal_during_a_save_is_content_with_that_save():
    step = FakeStep()
    signals = Signals(step)
    made, events, _ = trainer(
        step,
        last_step=9,
        save_every=3,
        requests=Requests(signal_number=signals),
        while_saving=lambda: setattr(signals, "received", signal.SIGINT),
    )
    assert made.fit(Position()).step == 3 and made.stop_signal == signal.SIGINT
    assert [step for kind, step in kinds_and_steps(events) if kind == "save"] == [3]


def test_a_file_asks_for_one_save_and_goes_when_that_is_whole(tmp_path):
    step, there = FakeStep(), []
    file = tmp_path / "SAVE_NOW"

    class Touched(Requests):
        def pending(self):
            if len(step.seen) == 2 and not there:
                file.touch()
            return super().pending()

    made, events, _ = trainer(
        step, requests=Touched(run_dir=tmp_path), while_saving=lambda: there.append(file.exists())
    )
    assert made.fit(Position()).step == 6 and not made.stop_signal
    assert [step for kind, step in kinds_and_steps(events) if kind == "save"] == [2, 6]
    assert there == [True, False] and not file.exists()


def asked_on_one_rank(rank, world_size, folder):
    """Signals in different steps, and the file that rank 0 looks for: where it stands, what was saved, the signal."""
    step, saves = FakeStep(), []
    (folder / "SAVE_NOW").touch()
    made, _, _ = trainer(
        step,
        last_step=9,
        save_at_end=False,
        requests=Requests(signal_number=Signals(step, at=3 if rank == 1 else 5), run_dir=folder if rank == 0 else None),
        while_saving=lambda: saves.append(len(step.seen)),
    )
    return made.fit(Position()).step, saves, made.stop_signal


def test_ranks_save_and_stop_together(tmp_path):
    assert run_ranks(asked_on_one_rank, 2, tmp_path) == [(4, [1, 4], signal.SIGTERM)] * 2
    assert not (tmp_path / "SAVE_NOW").exists()


def poisoned(rank, world_size, case):
    """A step after one rank's weights gave a NaN: whether each rank skipped, and whether a weight moved."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    parameters = step.model.parameters()
    with torch.no_grad():
        if rank == world_size - 1:
            next(iter(parameters.values())).view(-1)[0] = math.inf
    before = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
    share = case.samples // case.dp
    ids, labels = (t[context.at.dp * share : (context.at.dp + 1) * share] for t in case.batch(0))
    result = step(ids, labels, step=0, update=optimizer.step)
    return result.skipped, all(torch.equal(before[name], parameters[name]) for name in before)


@pytest.mark.parametrize("layout", [{"tp": 2}, {"pp": 2}, {"dp": 2}])
def test_all_ranks_skip_together(layout):
    case = Case(fields=tiny_fields("gpt2"), samples=8, clip_grad_norm=1.0, **layout)
    assert run_ranks(poisoned, 2, case) == [(True, True), (True, True)]


def gathered(rank, world_size):
    """What a step's numbers become over the ranks."""
    made, *_ = trainer(FakeStep())
    return made._largest([float(2**40 + rank), rank * 0.5, 1.0 - rank])


def test_the_largest_of_each_number_is_exact_on_all_ranks():
    assert run_ranks(gathered, 2) == [[2**40 + 1, 0.5, 1.0]] * 2


M1 = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 128, "vocab_size": 259}


def utilisation(rank, world_size, seconds, samples):
    """The line of one real step of `seconds` by a simulated clock, on devices of 1e12 operations per second."""
    case = Case(fields=M1, dp=2, sequence_length=128, precision="fp32", samples=samples)
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    lines, times = [], iter([0.0, 0.0, seconds])
    with mock.patch.object(metrics, "peak_flops", lambda name, precision: 1e12):
        describe = describer(plan, sequence_length=128)
    share = case.samples // case.dp
    ids, labels = (t[rank * share : (rank + 1) * share] for t in case.batch(0))
    made = Trainer(
        train_step=step,
        optimizer=torch.optim.SGD(step.model.parameters().values(), lr=0.1),
        lr_at=lambda updates: 0.1,
        train_loader=SimpleNamespace(global_batch_size=case.samples, batch=lambda consumed: batch_of(ids, labels)),
        eval_loader=None,
        settings=LoopSettings(last_step=1, eval_every=0, save_every=0, save_at_end=False, max_skipped_steps=10),
        save=lambda position: None,
        describe=describe,
        observers=[lines.append],
    )
    with mock.patch.object(loop, "time", SimpleNamespace(perf_counter=lambda: next(times))):
        made._fit(Position())
    return {name: lines[0][name] for name in ("tokens", "tokens_per_second", "flops_per_second", "mfu")}


@pytest.mark.parametrize("accumulation, seconds", [(4, 0.5), (8, 1.0)])
def test_utilisation_counts_the_whole_step_against_all_devices(accumulation, seconds):
    """896,640 operations a token; 2 samples a micro-batch, 2 data-parallel ranks: 4096 tokens/s either way."""
    lines = run_ranks(utilisation, 2, seconds, 2 * accumulation * 2)
    for line in lines:
        assert line["tokens"] == 512 * accumulation and line["tokens_per_second"] == 4096
        assert line["flops_per_second"] == 4096 * 896_640
        assert line["mfu"] == pytest.approx(0.001836, rel=1e-3)
