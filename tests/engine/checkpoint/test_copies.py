"""Copies that should be equal and are not: said once, in one paragraph, and saved all the same."""

import io
import math

import pytest
import torch

from gooseslo.engine.checkpoint import copies
from gooseslo.engine.checkpoint.load import load_tensors
from gooseslo.engine.checkpoint.save import Coordinates, LocalState, save_step
from gooseslo.engine.display.reporter import Reporter
from gooseslo.engine.metrics import warning_record
from gooseslo.parallel.tensor.layouts import whole

NORM = "transformer.h.0.ln_1.weight"


@pytest.fixture
def warnings_of(make_gpt2, run_ranks, tmp_path):
    """Saves a TinyGPT2 whose rank `on` was changed by `change(tensors, optimizer)`; what each rank was warned of."""

    def save(change, *, on=1, tp=1, pp=1, dp=1, masters=False):
        tiny = make_gpt2(n_layer=2)
        full = tiny.full()

        def rank_main(rank):
            at = Coordinates(tp=rank % tp, dp=rank // tp % dp, pp=rank // (tp * dp))
            where = {"tp": at.tp, "tp_size": tp, "pp": at.pp, "pp_size": pp}
            tensors = tiny.held(full, **where)
            optimizer = (
                {f"master/{name}": (t.clone(), place) for name, (t, place) in tensors.items()} if masters else {}
            )
            if rank == on:
                change(tensors, optimizer)
            heard = []
            folder = save_step(
                tmp_path / "checkpoints",
                20,
                local=LocalState(tensors=tensors, optimizer=optimizer),
                coordinates=at,
                topology={"tp": tp, "pp": pp, "dp": dp},
                state={},
                tied=tiny.tied,
                warn=heard.append,
            )
            return heard, folder

        size = tp * pp * dp
        results = [rank_main(0)] if size == 1 else run_ranks(rank_main, size)
        return [heard for heard, _ in results], results[0][1], full

    return save


def add(name, value, *, to=0):
    def change(*held):
        held[to][name][0].view(-1)[1] += value

    return change


def nothing(tensors, optimizer):
    """No change."""


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"pp": 2}, {"dp": 2}, {"tp": 2, "pp": 2}])
def test_equal_copies_are_not_worth_a_word(warnings_of, layout):
    heard, _, _ = warnings_of(nothing, masters=True, **layout)
    assert not any(heard)


def test_a_norm_that_differs_between_tp_ranks(warnings_of):
    heard, folder, full = warnings_of(add(NORM, 0.25), tp=2)
    [text] = heard[0]
    assert heard[1] == [] and "\n" not in text
    assert "step-00000020" in text and f"in 1 parameter: {NORM}; the largest difference is 0.25, in {NORM}" in text
    saved = torch.empty(24)
    load_tensors(folder, {NORM: (saved, whole((24,)))})
    assert torch.equal(saved, full[NORM]), "the lowest rank's copy"


def test_many_differences_make_one_paragraph(warnings_of):
    def drift(tensors, optimizer):
        for name, (tensor, _) in tensors.items():
            if "ln" in name:
                tensor.add_(0.5 if name == "transformer.ln_f.bias" else 1e-3)

    heard, _, _ = warnings_of(drift, tp=2)
    [text] = heard[0]
    assert "in 10 parameters: transformer.h.0.ln_1.bias, " in text and " and 7 more; " in text
    assert "largest difference is 0.5, in transformer.ln_f.bias" in text


def test_the_two_ends_of_a_tied_table(warnings_of):
    heard, _, _ = warnings_of(add("lm_head.weight", 2.0), pp=2)
    [text] = heard[0]
    assert "transformer.wte.weight; the largest difference is 2, in transformer.wte.weight" in text


def test_split_tensors_are_no_copies(warnings_of):
    heard, _, _ = warnings_of(add("transformer.h.0.mlp.c_fc.weight", 1.0), tp=2)
    assert not any(heard)


def test_masters_that_differ_under_equal_weights(warnings_of):
    """A master's drift may be too small for a bf16 weight to show."""
    heard, _, _ = warnings_of(add(f"master/{NORM}", 2**-12, to=1), tp=2, masters=True)
    [text] = heard[0]
    assert f"in 1 parameter: {NORM};" in text and f"{2**-12:.2g}, in master/{NORM}" in text


def test_a_copy_that_is_not_finite(warnings_of):
    heard, _, _ = warnings_of(add(NORM, math.nan), tp=2)
    assert "the largest difference is inf" in heard[0][0]


def test_only_what_ranks_hold_in_common_is_read(warnings_of, monkeypatch):
    """Weights that are split, or whole on one rank alone, cost nothing."""
    digest = copies._digest

    def counted(tensor):
        assert tensor.numel() in (24, 20 * 24, 21 * 24, 32 * 24), "norms, row biases, the table's halves, positions"
        return digest(tensor)

    monkeypatch.setattr(copies, "_digest", counted)
    warnings_of(nothing, tp=2, pp=2)


def test_the_warning_is_on_the_console_whatever_is_shown():
    stream = io.StringIO()
    with Reporter(stream, num_steps=3) as reporter:
        reporter(warning_record("step-00000003: ranks differ"))
    assert stream.getvalue() == "warning: step-00000003: ranks differ\n"


def test_a_difference_is_found_in_any_part_of_a_copy(warnings_of, monkeypatch):
    """The table is read in parts; its last element lies in the last, shorter one."""
    monkeypatch.setattr(copies, "_CHUNK_ELEMENTS", 100)

    def change(tensors, optimizer):
        tensors["transformer.wpe.weight"][0].view(-1)[-1] += 0.5

    heard, _, _ = warnings_of(change, tp=2)
    assert "the largest difference is 0.5, in transformer.wpe.weight" in heard[0][0]


def test_a_comparison_that_fails_costs_no_checkpoint(warnings_of, monkeypatch):
    def broken(tensor):
        raise MemoryError("honk")

    monkeypatch.setattr(copies, "_digest", broken)
    heard, folder, full = warnings_of(nothing, tp=2)
    assert heard[0] == ["step-00000020: what ranks should hold alike was not compared: honk"]
    saved = torch.empty(24)
    load_tensors(folder, {NORM: (saved, whole((24,)))})
    assert torch.equal(saved, full[NORM])
