"""Converts an error of the parts that a run is made of to one that names the keys of its config."""

from __future__ import annotations

import re

from kvhybrid.errors import TRACEBACK_HINT, InputError, one_line
from kvhybrid.plugins import failure_of

KEYS = {
    "max_batched_tokens": "scheduler.max_batched_tokens",
    "max_num_seqs": "scheduler.max_num_seqs",
    "max_model_len": "scheduler.max_model_len",
    "watermark": "scheduler.watermark",
    "retention_interval": "retention.interval",
    "block_size": "pool.block_size",
    "hash_block_size": "pool.hash_block_size",
    "num_blocks": "pool.num_blocks",
    "memory_bytes": "pool.memory",
}
"""Arguments of the engine, the planner and the cache manager, and the keys that they come from."""

_ARGUMENT = re.compile(rf"(?<![\w.])(?:{'|'.join(KEYS)})\b")


def refusal(error: Exception, hint: str = "") -> InputError:
    """``error`` and ``hint`` on one line, with the keys of the config in place of the names of arguments.

    An unexpected exception of a plug-in names the plug-in.
    """
    line = None if isinstance(error, InputError) else failure_of(error)
    if line is not None:
        line += TRACEBACK_HINT
    else:
        line = _ARGUMENT.sub(lambda found: KEYS[found[0]], one_line(error))
    return InputError(f"{line}{hint}")
