"""Reads a ``*.wandb`` file: a LevelDB log of protobuf records behind a header of 7 bytes."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

LOG_BLOCK, LOG_HEADER = 32768, 7
WHOLE, LAST = 1, 4
PATIENCE = 600
"""Tenths of a second."""


def records(folder: Path) -> list[Any]:
    """The records of the one finished offline run under ``folder/wandb``; the last one is its exit.

    wandb's own process writes it, a moment after ``finish`` has returned or the run's process was killed.
    """
    import wandb

    wandb.teardown()
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    for _ in range(PATIENCE):
        found = _records(file.read_bytes())
        if found and found[-1].HasField("exit"):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{file} ends without an exit")


def _records(data: bytes) -> list[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    assert data[:4] in (b"", b":W&B")
    found, part, at = [], b"", LOG_HEADER
    while at + LOG_HEADER <= len(data):
        left = LOG_BLOCK - at % LOG_BLOCK
        if left < LOG_HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += LOG_HEADER
        if at + length > len(data):
            break
        part += data[at : at + length]
        at += length
        if kind in (WHOLE, LAST):
            found.append(Record.FromString(part))
            part = b""
    return found


def series(folder: Path) -> list[dict[str, Any]]:
    """The logged steps, in order."""
    return [_values(record.history.item) for record in records(folder) if record.HasField("history")]


def summary(folder: Path) -> dict[str, Any]:
    """The last summary."""
    merged: dict[str, Any] = {}
    for record in records(folder):
        if record.HasField("summary"):
            merged.update(_values(record.summary.update))
    return merged


def config(folder: Path) -> dict[str, Any]:
    """The configuration of the run."""
    (run,) = [record.run for record in records(folder) if record.HasField("run")]
    return _values(run.config.update)


def exit_codes(folder: Path) -> list[int]:
    """The exit record that a run which was finished in order has."""
    return [record.exit.exit_code for record in records(folder) if record.HasField("exit")]


def _values(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
