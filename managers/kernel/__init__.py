"""The passes of a block pool over its arrays: native where they were compiled, in numpy elsewhere.

``KVHYBRID_KERNEL=plain`` in the environment chooses the numpy form.
"""

from __future__ import annotations

import os

from kvhybrid.managers.kernel.plain import BlockArrays as PlainBlockArrays

BlockArrays: type[PlainBlockArrays] = PlainBlockArrays
if os.environ.get("KVHYBRID_KERNEL") != "plain":
    try:
        from kvhybrid.managers.kernel._native import BlockArrays  # type: ignore[no-redef,unused-ignore]
    except ImportError:  # no compiler was there at installation
        BlockArrays = PlainBlockArrays

is_native = BlockArrays is not PlainBlockArrays
"""Whether the passes are native."""

__all__ = ["BlockArrays", "PlainBlockArrays", "is_native"]
