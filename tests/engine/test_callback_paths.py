"""`parallel.callbacks` by import path, and `logging.trace`."""

import json

import pytest
import torch

from gooseslo.engine.callbacks import check_callbacks, load_callbacks
from gooseslo.engine.trace import ChromeTrace
from gooseslo.errors import ConfigError
from gooseslo.parallel.mesh import Coordinates
from gooseslo.parallel.pipeline.callbacks import Callbacks


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_callbacks.py").write_text(
        "from gooseslo.parallel.pipeline.callbacks import PipelineCallback\n"
        "class Mine(PipelineCallback):\n    pass\n"
        "class Other:\n    pass\n"
        "class Needy(PipelineCallback):\n    def __init__(self, where):\n        pass\n"
    )
    (tmp_path / "a_script.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "mistyped.py").write_text("import math\nmath.sqroot(2)\n")


def test_classes_are_found(module):
    one, two = load_callbacks(["my_callbacks:Mine", "my_callbacks:Mine"])
    assert type(one).__name__ == "Mine" and one is not two


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("my_callbacks", "is no import path"),
        ("my_callbacks:", "is no import path"),
        ("my_callbacks:Yours", "my_callbacks has no Yours"),
        ("no_such_module:Mine", "cannot be imported"),
        ("my_callbacks:Other", "is no subclass"),
        ("my_callbacks:Needy", "cannot be made without arguments: missing a required argument: 'where'"),
        ("a_script:Mine", "a_script fails while it is imported: SystemExit: 0"),
        ("mistyped:Mine", "mistyped fails while it is imported: AttributeError"),
    ],
)
def test_what_is_none_is_refused(module, path, words):
    with pytest.raises(ConfigError, match=rf"parallel\.callbacks={path}: .*{words}"):
        check_callbacks([path])


def read(path):
    return json.loads(path.read_text().rstrip().removesuffix(",") + "]")


def test_a_trace_is_whole_after_each_step_and_goes_on(tmp_path):
    options = {"rank": 3, "at": Coordinates(pp=1), "device": torch.device("cpu")}
    for start in (0, 1):
        trace = ChromeTrace(tmp_path, **options)
        callbacks = Callbacks([trace])
        with callbacks.around("forward", 2, 5):
            pass
        with callbacks.around("backward", 2, 5), callbacks.around("recompute", 2, 5):
            pass
        callbacks.after_step(start)
        events = read(tmp_path / "trace" / "rank-3.json")
        spans = [event for event in events if event["ph"] == "X"]
        assert [event["args"]["step"] for event in spans] == [0] * 3 + [1] * 3 * start
        forward, recompute, backward = spans[-3:]
        assert [each["cat"] for each in (forward, recompute, backward)] == ["forward", "recompute", "backward"]
        assert all(each["pid"] == 3 and each["tid"] == 5 and each["args"]["micro_batch"] == 2 for each in spans)
        assert forward["ts"] + forward["dur"] <= backward["ts"] <= recompute["ts"]
        assert recompute["ts"] + recompute["dur"] <= backward["ts"] + backward["dur"]
        callbacks.close()
