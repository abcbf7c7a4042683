"""Text from a merged folder: repeatable, with the prompt as typed, and clear about folders that are not merged."""

import io
import shlex
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from gooseslo.engine.generate import generate
from gooseslo.errors import CheckpointError, ConfigError
from gooseslo.schema.compose import compose_merge
from gooseslo.schema.groups import GenerateJob, GenerateModelConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("merged")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<|endoftext|>": 0} | {symbol: i for i, symbol in enumerate(alphabet, start=1)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end, bos_token=end, pad_token=end).save_pretrained(path)
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=257, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    model.transformer.wte.weight.data[0] = 0  # the end of text is never the likeliest
    model.save_pretrained(path)
    return path


def run(folder, *, init="pretrained", stdin="", **options):
    stdout = io.StringIO()
    job = GenerateJob(model=GenerateModelConfig(path=str(folder), init=init), **options)
    assert generate(job, stdin=io.StringIO(stdin), stdout=stdout) == 0
    return stdout.getvalue()


def test_prompt_and_continuation(folder):
    text = run(folder, prompt="  goose, honk", max_new_tokens=8)
    assert text.startswith("  goose, honk") and text.endswith("\n") and len(text) > len("  goose, honk\n")
    assert text == run(folder, prompt=None, stdin="  goose, honk", max_new_tokens=8)
    assert "<|endoftext|>" not in text


def test_a_prompt_that_is_no_text_is_refused(folder):
    typed = b"goose \xff".decode(errors="surrogateescape")
    for options in ({"prompt": typed}, {"stdin": typed}):
        with pytest.raises(ConfigError, match=r"prompt: .* is not UTF-8"):
            run(folder, **options)


def test_greedy_equals_the_models_own_choice(folder):
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = [1 + alphabet.index(c) for c in "abc"]
    for _ in range(4):
        ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
    new = decoders.ByteLevel().decode([alphabet[i - 1] for i in ids[3:]])
    assert run(folder, prompt="abc", max_new_tokens=4) == "abc" + new + "\n"


def test_seeds(folder):
    sampled = [run(folder, prompt="a", do_sample=True, top_k=0, max_new_tokens=16, seed=s) for s in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    fresh = [run(folder, init="random", prompt="a", max_new_tokens=16, seed=s) for s in (3, 3, 4)]
    assert fresh[0] == fresh[1] != fresh[2] and fresh[0] != run(folder, prompt="a", max_new_tokens=16)


def test_beams(folder):
    assert run(folder, prompt="ab", num_beams=3, max_new_tokens=5).startswith("ab")


def test_empty_prompt_starts_from_the_beginning_of_text(folder):
    assert len(run(folder, prompt="", max_new_tokens=5)) > 1


def test_length_is_checked_with_the_largest_that_fits(folder):
    with pytest.raises(ConfigError, match=r"max_new_tokens=60: .*64 positions\n.*max_new_tokens=54"):
        run(folder, prompt="x" * 10, max_new_tokens=60)
    run(folder, prompt="x" * 10, max_new_tokens=54)
    with pytest.raises(ConfigError, match="prompt: 64 tokens leave no room"):
        run(folder, prompt="x" * 64, max_new_tokens=1)


def test_folders_that_are_not_merged(folder, tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        run(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"config\.json.*model\.safetensors"):
        run(tmp_path)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="gooseslo merge-checkpoint input="):
        run(tmp_path / "run")
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "manifest.json").touch()
    with pytest.raises(CheckpointError, match="a step folder"):
        run(tmp_path / "step")


def test_the_command_that_merges_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("my run; $(honk)", "[a]"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        with pytest.raises(CheckpointError) as error:
            run(name)
        command = shlex.split(str(error.value).partition("merge it first: ")[2])
        assert command[:2] == ["gooseslo", "merge-checkpoint"] and command[3] == "output=DIR"
        assert compose_merge(command[2:]).input == name


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_folder(folder, tmp_path, name):
    for path in Path(folder).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes(b"{broken")
    with pytest.raises(CheckpointError):
        run(tmp_path, prompt="a")
