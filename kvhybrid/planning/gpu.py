"""GPUs by name: the memory that their driver reports."""

from __future__ import annotations

from collections.abc import Mapping

from kvhybrid.errors import nearest
from kvhybrid.planning.error import PlanningError

MIB = 1 << 20

TOTAL_MIB = {
    "a10-24gb": 23_028,
    "a100-40gb": 40_960,
    "a100-80gb": 81_920,
    "b200-180gb": 183_359,
    "gh200-96gb": 97_871,
    "h100-80gb": 81_559,
    "h200-141gb": 143_771,
    "l4-24gb": 23_034,
    "l40s-48gb": 46_068,
    "rtx3090-24gb": 24_576,
    "rtx4090-24gb": 24_564,
    "rtx5090-32gb": 32_607,
    "t4-16gb": 15_360,
    "v100-32gb": 32_768,
}
"""MiB in total, as nvidia-smi lists it. It differs by a few MiB between boards and drivers."""


def gpu_bytes(name: str) -> int:
    """Bytes of the GPU called ``name``. Raises `PlanningError` for an unknown one."""
    if name not in TOTAL_MIB:
        raise PlanningError(f"gpu={name}: unknown{nearest(name, TOTAL_MIB, 'gpu=')}; or give pool.memory=BYTES")
    return TOTAL_MIB[name] * MIB


def cache_bytes(gpu: str, *, utilization: float, weights: int, reserve: int) -> int:
    """Bytes for the cache: total × utilization − weights − reserve. Raises `PlanningError` if nothing is left."""
    total = gpu_bytes(gpu)
    try:
        return left_for_cache(total, utilization, {"weights": weights, "reserve": reserve})
    except PlanningError as error:
        raise PlanningError(
            f"gpu={gpu}: {error}; raise tp, or give weights=BYTES for compressed weights"
        ) from None


def left_for_cache(total: int, utilization: float, taken: Mapping[str, int]) -> int:
    """Bytes of ``total × utilization`` without ``taken``, by name. Raises `PlanningError` if nothing is left."""
    left = int(total * utilization) - sum(taken.values())
    if left <= 0:
        parts = "".join(f" − {name} {size:,}" for name, size in taken.items())
        raise PlanningError(f"no memory is left for the cache: {total:,} bytes × {utilization}{parts} = {left:,}")
    return left
