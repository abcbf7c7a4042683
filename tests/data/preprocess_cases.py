"""What the tests of preprocessing share: the word tokenizer of the fault list, corpora, and one run."""

import contextlib
import io
import json
import os
import random
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gooseslo.data.preprocess.run import Request, preprocess

WORDS = ["<eod>", "<unk>", "<pad>", "goose", "honk", "pond", "egg", "reed", "wing", "nest"]


def word_tokenizer(words=WORDS, eos="<eod>"):
    """T0: ids are places in the list; <eod> parts documents."""
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, pad_token="<pad>", unk_token="<unk>")


def write_jsonl(path, texts, key="text"):
    path.write_text("".join(json.dumps({key: text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")
    return path


def texts(count, seed=0, longest=60):
    """Documents of words, some of them empty or with line ends inside."""
    draw = random.Random(seed)
    return [
        draw.choice([" ", "  ", "\n"]).join(draw.choices(WORDS[3:], k=draw.randrange(longest))) for _ in range(count)
    ]


@contextlib.contextmanager
def killed_at_a_name(monkeypatch, renamed):
    """A run of output `out` dies when it is to give its files a name, after so many of them have theirs."""
    real, count = os.rename, []

    def rename(source, target):
        if ".out.preprocess" in str(source) and not str(target).endswith("preprocess/tokenizer"):
            count.append(target)
            if len(count) > renamed:
                raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        yield


class Bench:
    """A folder with T0 in it, and runs there."""

    def __init__(self, folder: Path):
        self.folder = folder
        word_tokenizer().save_pretrained(folder / "t0")

    def run(self, given, output="out", **options):
        """(what it said, its prefix)."""
        out, err = io.StringIO(), io.StringIO()
        options = {"tokenizer": "t0", "workers": 1, **options}
        request = Request(input=given, output=output, **options)
        try:
            preprocess(request, base_dir=self.folder, out=out, err=err)
        finally:
            self.said = out.getvalue() + err.getvalue()
        return self.folder / output

    def files(self, output="out"):
        """Content of the files that training reads."""
        return [(self.folder / f"{output}.{ending}").read_bytes() for ending in ("bin", "idx")]

    def left(self):
        """Everything but the tokenizer and what the test wrote itself, hidden files included."""
        return sorted(path.name for path in self.folder.iterdir() if path.name.startswith((".", "out")))
