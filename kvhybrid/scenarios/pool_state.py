"""Answers of ``state`` steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvhybrid.cache.manager import KVCacheManager


def pool_state(manager: KVCacheManager, names: Mapping[str, str]) -> dict[str, Any]:
    """The pool of ``manager`` and the tables of its requests; ``names`` maps request ids to the names to show."""
    pool, index, unit = manager.block_pool, manager.coordinator.index, manager.config.hash_unit
    tables = {name: [row.tolist() for row in manager.get_block_ids(id)] for id, name in names.items()}
    return {
        "free_queue": pool.free_queue(),
        "num_free": pool.num_free,
        "cached": {
            str(block): index.units(int(pool.keys.number_of[block])) * unit
            for block in np.flatnonzero(pool.keys.number_of).tolist()
        },
        "refs": {str(block): int(pool.refs[block]) for block in np.flatnonzero(pool.refs).tolist()},
        "usage": round(pool.usage, 6),
        "tables": {name: rows for name, rows in tables.items() if any(rows)},
    }
