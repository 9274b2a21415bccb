"""Memory layouts, which decide where the blocks of each kind of layer lie: one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhybrid.plugins import Registry

if TYPE_CHECKING:
    from kvhybrid.planning.layouts.base import MemoryLayout

layouts: Registry[MemoryLayout] = Registry(
    "memory layout",
    "kvhybrid.layouts",
    "kvhybrid.planning.layouts.base:MemoryLayout",
    {
        "lcm": "kvhybrid.planning.layouts.lcm:LcmLayout",
        "padded": "kvhybrid.planning.layouts.padded:PaddedLayout",
        "static": "kvhybrid.planning.layouts.static:StaticLayout",
    },
)
