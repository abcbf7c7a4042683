"""Merged folders: transformers loads them with nothing missing or unexpected, and the weights are the model's."""

import os

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from gooseslo.engine.checkpoint.merge import find_step, merge_checkpoint
from gooseslo.engine.run_folder import CHECKPOINTS
from gooseslo.errors import CheckpointError, ConfigError


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("tie", [True, False])
def test_split_save_merge_load_gives_the_same_model(make_gpt2, save_tiny, tmp_path, tp, pp, tie):
    tiny = make_gpt2(tie=tie, n_layer=2)
    save_tiny(tiny, tmp_path / "run" / CHECKPOINTS, step=20, tp=tp, pp=pp)
    output = tmp_path / "merged"
    merge_checkpoint(tmp_path / "run", output)
    model, info = AutoModelForCausalLM.from_pretrained(output, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    with safe_open(output / "model.safetensors", framework="pt") as file:
        assert len(list(file.keys())) == 28 + (not tie)
        assert file.metadata() == {"format": "pt"}
    for name, tensor in tiny.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    ids = torch.arange(8)[None]
    assert torch.equal(tiny.model.eval()(ids).logits, model.eval()(ids).logits)
    assert AutoTokenizer.from_pretrained(output)("ab")["input_ids"] == [1, 2]
    assert sorted(os.listdir(output)) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


def test_the_stored_type_is_the_exported_one(make_gpt2, save_tiny, tmp_path):
    tiny = make_gpt2(n_layer=2)
    tiny.model.to(torch.bfloat16)
    folder = save_tiny(tiny, tmp_path / "c", tp=2)
    merge_checkpoint(folder, tmp_path / "merged")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_many_stages_are_ordered_by_number(make_gpt2, tmp_path, write_common):
    """Twelve stages: file names sorted as text would give 0, 1, 10, 11, 2."""
    from gooseslo.engine.checkpoint import save as save_module
    from gooseslo.engine.checkpoint.manifest import Manifest

    tiny = make_gpt2(n_layer=12)
    for index, block in enumerate(tiny.model.transformer.h):
        block.ln_1.weight.data.fill_(index)
    folder = tmp_path / "step"
    folder.mkdir()
    written, full = [], tiny.full()
    for pp in range(12):
        share = save_module._Share(tensors=tiny.held(full, tp=0, tp_size=1, pp=pp, pp_size=12))
        share.tensors.pop("lm_head.weight", None)
        if pp == 11:
            share.tensors.pop("transformer.wte.weight", None)
        at = save_module.Coordinates(pp=pp)
        written.append(save_module._write_shares(folder, share, save_module._Share(tensors={}), at))
    write_common(tiny.model)(folder)
    manifest: Manifest = save_module._manifest(folder, written, topology={"pp": 12}, tied=tiny.tied)
    manifest.write(folder)
    merge_checkpoint(folder, tmp_path / "merged")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert [block.ln_1.weight[0].item() for block in model.transformer.h] == list(range(12))


@pytest.fixture
def run_dir(make_gpt2, save_tiny, tmp_path):
    tiny = make_gpt2(n_layer=1)
    for step in (5, 10):
        save_tiny(tiny, tmp_path / "run" / CHECKPOINTS, step=step)
    return tmp_path / "run"


def test_which_step(run_dir):
    assert find_step(run_dir).name == find_step(run_dir, "10").name == "step-00000010"
    assert find_step(run_dir, "5").name == "step-00000005"
    assert find_step(run_dir / CHECKPOINTS / "step-00000005").name == "step-00000005"


def test_what_is_typed_wrongly_names_its_key(run_dir, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    cases = [
        ((run_dir, tmp_path / "full"), {}, ["output", "not an empty folder"]),
        ((run_dir, tmp_path / "full" / "mine.txt"), {}, ["output"]),
        ((tmp_path / "absent", tmp_path / "out"), {}, ["input", "no such folder"]),
        ((tmp_path / "full", tmp_path / "out"), {}, ["input", "neither a run folder"]),
        ((run_dir, tmp_path / "out"), {"step": "7"}, ["model.step=7", "latest, 5, 10"]),
        ((run_dir, tmp_path / "out"), {"step": "best"}, ["model.step=best"]),
        ((run_dir / CHECKPOINTS / "step-00000005", tmp_path / "out"), {"step": "5"}, ["model.step=5", "leave it out"]),
    ]
    for places, options, words in cases:
        with pytest.raises(ConfigError) as caught:
            merge_checkpoint(*places, **options)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["full", "run"]
    assert os.listdir(tmp_path / "full") == ["mine.txt"]


def test_an_empty_output_folder_is_used(run_dir, tmp_path):
    (tmp_path / "out").mkdir()
    merge_checkpoint(run_dir, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").is_file()


def test_damage_is_refused_with_nothing_written(run_dir, tmp_path):
    path = find_step(run_dir) / "model_tp=0_pp=0.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="SHA-256"):
        merge_checkpoint(run_dir, tmp_path / "out")
    path.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        merge_checkpoint(run_dir / CHECKPOINTS / "step-00000010", tmp_path / "out")
    assert os.listdir(tmp_path) == ["run"]
