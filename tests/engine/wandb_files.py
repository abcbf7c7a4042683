"""Reads what wandb writes when it is offline: a log of framed records, each a protobuf message.

The frame is LevelDB's: blocks of 32 KiB, records with a header of checksum (4 bytes), length (2) and type (1: whole,
2: first part, 3: middle, 4: last), after a file header of 7 bytes.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

_BLOCK = 32768
_FILE_HEADER = 7
_HEADER = struct.Struct("<IHB")


def _messages(path: Path):
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, parts = _FILE_HEADER, b""
    while at + _HEADER.size <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER.size:  # the rest of a block is too short for a header
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        parts += data[at + _HEADER.size : at + _HEADER.size + length]
        at += _HEADER.size + length
        if kind in (1, 4):
            yield parts
            parts = b""
        elif kind == 0:
            return


def read_offline(path: Path):
    """(run, configuration, history) of a .wandb file: the run's message, and plain Python values."""
    from wandb.proto.wandb_internal_pb2 import Record

    run, config, history, exit_code = None, {}, [], None
    for message in _messages(path):
        record = Record()
        record.ParseFromString(message)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            config |= {item.key: json.loads(item.value_json) for item in run.config.update}
        elif kind == "config":
            config |= {item.key: json.loads(item.value_json) for item in record.config.update}
        elif kind == "history":
            items = record.history.item
            history.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
        elif kind == "exit":
            exit_code = record.exit.exit_code
    return run, config, history, exit_code
