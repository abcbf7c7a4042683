"""Groups of parameters by name: how they are typed, what is refused, and that a continued run keeps them."""

import pytest
import yaml

from gooseslo.errors import ConfigError
from gooseslo.schema.compose import compose_train
from gooseslo.schema.dump import dump_yaml
from gooseslo.schema.groups import AdamWConfig
from gooseslo.schema.param_groups import check_patterns, settings_of
from gooseslo.schema.resume import check_resume

NAMES = [
    "transformer.wte.weight",
    *(
        f"transformer.h.{layer}.{name}"
        for layer in range(12)
        for name in ("ln_1.weight", "ln_1.bias", "mlp.c_fc.weight")
    ),
]


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ('{"*.bias": {weight_decay: 0.0}}', {"*.bias": {"weight_decay": 0.0}}),
        ("{'*.bias': {'weight_decay': 0.0}}", {"*.bias": {"weight_decay": 0.0}}),
        ("{*.bias: {weight_decay: 0.0}}", {"*.bias": {"weight_decay": 0.0}}),
        (
            '{"*.ln_?.*": {lr: 1e-4, betas: [0.8, 0.9]}, "transformer.wte.weight": {lr: 0}}',
            {"*.ln_?.*": {"lr": 1e-4, "betas": [0.8, 0.9]}, "transformer.wte.weight": {"lr": 0}},
        ),
        ('{"*.h.[01].*" : {lr: 1e-4}}', {"*.h.[01].*": {"lr": 1e-4}}),
        ("{}", {}),
    ],
)
def test_groups_on_the_command_line(text, groups, tmp_path):
    job = compose_train([f"optimizer.groups={text}"])
    assert job.optimizer == AdamWConfig(groups=groups)
    (tmp_path / "config.yaml").write_text(dump_yaml(job), encoding="utf-8")
    assert compose_train([], config_file=tmp_path / "config.yaml") == job
    assert compose_train(["optimizer=sgd"], config_file=tmp_path / "config.yaml").optimizer.groups == {}


def test_groups_in_a_file_and_over_it(tmp_path):
    path = tmp_path / "groups.yaml"
    path.write_text('optimizer:\n  groups:\n    "*.bias": {lr: 1e-4}\n    transformer.h.[!0].*:\n      lr: 1e-3\n')
    groups = {"*.bias": {"lr": 1e-4}, "transformer.h.[!0].*": {"lr": 1e-3}}
    assert compose_train([], config_file=path).optimizer.groups == groups
    typed = compose_train(['optimizer.groups={"*.weight": {lr: 1e-5}}'], config_file=path)
    assert typed.optimizer.groups == {"*.weight": {"lr": 1e-5}}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ['optimizer.groups={"*.bias": {weigth_decay: 0}}'],
            ["adamw has no setting weigth_decay", "nearest: weight_d"],
        ),
        (['optimizer.groups={"*.bias": {weigth_decay: 0}}'], ["settings: lr, weight_decay, betas, eps"]),
        (["optimizer=sgd", 'optimizer.groups={"*": {betas: [0.9, 0.9]}}'], ["sgd has no setting betas", "momentum"]),
        (['optimizer.groups={"*": {lr: fast}}'], ['{"*": {"lr": "fast"}}', "lr must be a number"]),
        (['optimizer.groups={"*": {lr: true}}'], ["lr must be a number"]),
        (['optimizer.groups={"*": {lr: -1}}'], ["lr must be at least 0"]),
        (['optimizer.groups={"*": {betas: 0.9}}'], ["betas must be a list of numbers"]),
        (['optimizer.groups={"*": {betas: [0.9, 1.0]}}'], ["betas must be two numbers"]),
        (['optimizer.groups={"*": {}}'], ["needs a mapping of settings"]),
        (['optimizer.groups={"*": 3}'], ["needs a mapping of settings"]),
        (["optimizer.groups={1: {lr: 1}}"], ["the pattern 1 is not a text"]),
        (["optimizer.groups=3"], ["is not a mapping", "braces"]),
        (["optimizer.groups=null"], ["a mapping cannot be null"]),
        (["optimizer.lr=0", 'optimizer.groups={"*": {lr: 1e-4}}'], ["optimizer.lr, which is 0"]),
    ],
)
def test_wrong_settings_are_refused(arguments, words):
    with pytest.raises(ConfigError) as error:
        compose_train(arguments)
    (fault,) = error.value.faults
    assert fault.key == "optimizer.groups" and len(str(fault).splitlines()) <= 5
    assert all(word in str(fault) for word in words), str(fault)


def test_a_pattern_that_fits_nothing_names_the_nearest():
    (fault,) = check_patterns({"*.bias": {"lr": 1.0}, "transformer.h.*.mlp.c_fcc.weight": {"lr": 1.0}}, NAMES)
    assert fault.key == "optimizer.groups" and "c_fcc" in str(fault.value)
    assert fault.way_out.startswith("nearest: transformer.h.*.mlp.c_fc.weight, ")


def test_a_parameter_fits_one_pattern_at_most():
    (fault,) = check_patterns({"*.bias": {"lr": 1.0}, "*.ln_1.*": {"lr": 2.0}, "*.wte.*": {"lr": 3.0}}, NAMES)
    assert "ln_1" in str(fault.value)
    assert fault.rule == 'transformer.h.0.ln_1.bias fits "*.bias" as well (12 parameters in all)'
    assert check_patterns({"*.bias": {"lr": 1.0}, "*.ln_1.weight": {"lr": 2.0}}, NAMES) == []


def test_a_star_stands_for_any_text():
    groups = {"*.bias": {"lr": 1.0}, "transformer.h.1?.*": {"lr": 2.0}}
    assert settings_of(groups, "transformer.h.3.ln_1.bias") == {"lr": 1.0}
    assert settings_of(groups, "transformer.h.11.ln_1.weight") == {"lr": 2.0}
    assert settings_of(groups, "transformer.h.1.ln_1.weight") == {}
    assert settings_of(groups, "transformer.h.1.ln_1.biases") == {}


def test_a_continued_run_keeps_its_groups():
    grouped = ['optimizer.groups={"*.bias": {lr: 1e-4, weight_decay: 0.25}, "*.wte.*": {betas: [0.8, 0.9]}}']
    old = yaml.safe_load(dump_yaml(compose_train(grouped)))
    assert check_resume(old, compose_train(grouped)) == []
    for changed in ([], ['optimizer.groups={"*.bias": {lr: 2e-4}}'], ['optimizer.groups={"*.weight": {lr: 1e-4}}']):
        (fault,) = check_resume(old, compose_train(changed))
        assert fault.key == "optimizer.groups"
        [way_out] = [part for part in fault.way_out.split(", or ") if part.startswith("give ")]
        assert check_resume(old, compose_train([way_out.removeprefix("give ")])) == [], "the way out can be typed"
