"""`gooseslo train` in the parent: plan, data, run folder, then the workers; and what a worker does with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import torch
import yaml

from gooseslo.data.corpus import Corpus
from gooseslo.data.prepare import PreparedData, prepare
from gooseslo.data.stdlib_corpus import StdlibCorpus
from gooseslo.data.text_files import TextCorpus
from gooseslo.engine.build import build_trainer
from gooseslo.engine.checkpoint.load import find_latest
from gooseslo.engine.launcher import LaunchSpec, cache_folder, launch
from gooseslo.engine.plan import Plan, make_plan
from gooseslo.engine.worker import Worker
from gooseslo.errors import ConfigError
from gooseslo.schema.dump import dump_yaml
from gooseslo.schema.groups import StdlibDataConfig, TextDataConfig, TrainJob
from gooseslo.schema.resume import check_resume
