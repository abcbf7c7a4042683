"""Text reaches its key as typed; numbers and booleans are strict."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gooseslo.errors import ConfigError
from gooseslo.schema.compose import compose_generate, compose_merge, compose_train
from gooseslo.schema.dump import dump_yaml
from gooseslo.schema.quoting import as_argument, quote, unquote
from gooseslo.schema.values import Scalar, read_value

QUOTE_HEAVY = st.text(alphabet="ab'\"\\ =#${}[],\n", max_size=12) | st.text(max_size=12)


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world",
        "def f(x):",
        "It's",
        "${x}",
        "${oc.env:HOME}",
        "a=b",
        "exp#2",
        "1e-4",
        "true",
        "[1, 2",
        "{a}",
        "two\nlines",
        " spaces ",
        "",
        "'a' and 'b'",
        "'",
        "\\'",
        "鵞鳥 🪿",
        "!tag",
        "NULL",
        "???",
    ],
)
def test_a_prompt_means_what_it_says(text, tmp_path):
    assert compose_generate([f"model.path={tmp_path}", f"prompt={text}"]).prompt == text


@pytest.mark.parametrize("name", ["2024_01", "1e-4", "exp#2", "12:30", "yes", "on", "010", "0x10", "step=100", "None"])
def test_a_run_name_keeps_its_characters(name):
    assert compose_train([f"run.name={name}"]).run.name == name


def test_paths_with_an_equals_sign(tmp_path):
    folder = tmp_path / "step=3" / "model_tp=0_pp=0.safetensors"
    folder.mkdir(parents=True)
    output = tmp_path / "out"
    for spelling in (str(folder), f"'{folder}'", f'"{folder}"'):
        assert compose_merge([f"input={spelling}", f"output={output}"]).input == str(folder)


def test_null_is_null_and_quoted_it_is_a_word():
    assert compose_train(["run.name=null"]).run.name is None
    assert compose_train(["run.name='null'"]).run.name == "null"


def test_text_or_list_keys():
    job = compose_train(["data=text", "data.train=a=b.txt", "data.valid=[a.txt,b.txt]", "data.test='[x].txt'"])
    assert (job.data.train, job.data.valid, job.data.test) == ("a=b.txt", ["a.txt", "b.txt"], "[x].txt")
    job = compose_train(["data=text", "data.train=[{path: a.txt, start: 0, end: 0.5}]", "data.valid=null"])
    assert job.data.train == [{"path": "a.txt", "start": 0, "end": 0.5}]
    assert compose_train(["parallel.pp=2", "parallel.partition=[3,3]"]).parallel.partition == [3, 3]


@pytest.mark.parametrize("source", ["command line", "file"])
@pytest.mark.parametrize("text, value", [("2", 2), ("full", "full")])
def test_a_key_that_takes_a_number_or_a_name(tmp_path, source, text, value):
    path = tmp_path / "run.yaml"
    path.write_text(f"train: {{activation_checkpointing: {text}}}\n")
    given = [f"train.activation_checkpointing={text}"]
    job = compose_train(given) if source == "command line" else compose_train([], config_file=path)
    assert job.train.activation_checkpointing == value
    path.write_text(dump_yaml(job))
    assert compose_train([], config_file=path).train.activation_checkpointing == value


@pytest.mark.parametrize(
    "value", ["[2024_01]", "[1]", "[]", "", "[{path: a.txt, stop: 3}]", "[{start: 1}]", "[a=b.txt]"]
)
def test_a_list_of_paths_is_never_guessed(value):
    with pytest.raises(ConfigError, match=r"data\.train"):
        compose_train(["data=text", f"data.train={value}"])


@pytest.mark.parametrize(
    "argument",
    [
        "parallel.tp=2.0",
        "parallel.tp=true",
        "parallel.tp=null",
        "parallel.tp=",
        "parallel.tp=010",
        "parallel.tp=0x2",
        "parallel.tp=1,2",
        "parallel.tp=[2]",
        "parallel.tp=${train.steps}",
        "train.activation_checkpointing='2'",
        "train.activation_checkpointing=2.0",
        "train.activation_checkpointing=010",
        "train.activation_checkpointing=[2]",
        "train.activation_checkpointing=null",
        "parallel.callbacks=[null]",
        "parallel.callbacks=[3]",
        "checkpoint.final=yes",
        "checkpoint.final=on",
        "checkpoint.final=1",
        "checkpoint.final=2",
        "checkpoint.final=null",
        "optimizer.lr=true",
        "optimizer.lr=fast",
        "optimizer.lr=nan",
        "optimizer.lr=inf",
        "optimizer.lr=1e999",
        "optimizer.betas=0.9",
        "optimizer.betas=[0.9,high]",
        "optimizer.betas=[0.9,true]",
        "train.precision=null",
        "model.config=3",
        "model.config.n_embd=nan",
    ],
)
def test_a_wrong_type_is_refused_under_the_key_as_typed(argument):
    with pytest.raises(ConfigError) as error:
        compose_train([argument])
    (fault,) = error.value.faults
    assert argument.startswith(fault.key)


def test_what_numbers_and_booleans_take():
    job = compose_train(
        ["optimizer.lr='1e-4'", "train.steps=1_000", "optimizer.weight_decay=1", "checkpoint.final=False"]
    )
    assert job.optimizer.lr == 1e-4
    assert job.train.steps == 1000
    assert type(job.optimizer.weight_decay) is float
    assert job.checkpoint.final is False


@example("\\\n")
@example("\\'\\\\")
@given(QUOTE_HEAVY)
def test_quoting_gives_the_text_back(text):
    assert unquote(quote(text)) == (text, True)
    _, _, value = as_argument("run.name", text).partition("=")
    assert read_value(Scalar.typed(value), str | None) == text


@example("\\\n")
@example("\\'\\\\")
@given(QUOTE_HEAVY)
def test_unquoting_agrees_with_hydra(text):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = OverridesParser.create().parse_override(f"key={quote(text)}")
    assert override.value() == text
