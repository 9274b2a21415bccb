"""The kernel: a block pool's operations on its arrays, and the hashing of keys, in C if it could be compiled.

``KVHYBRID_KERNEL=plain`` in the environment selects the plain form.
"""

from __future__ import annotations

import os
from contextlib import suppress

from kvhybrid.managers.kernel import plain

BlockArrays: type[plain.BlockArrays] = plain.BlockArrays
as_token_ids, extend_keys = plain.as_token_ids, plain.extend_keys
stretches, merge_equal_rows = plain.stretches, plain.merge_equal_rows
mark_all, mark_each, put_span = plain.mark_all, plain.mark_each, plain.put_span
if os.environ.get("KVHYBRID_KERNEL") != "plain":
    # Without a compiler there is no native form; an editable installation may have an outdated one.
    with suppress(ImportError, AttributeError):
        from kvhybrid.managers.kernel import _native as native

        as_token_ids, extend_keys, stretches, merge_equal_rows, mark_all, mark_each, put_span, BlockArrays = (
            native.as_token_ids,
            native.extend_keys,
            native.stretches,
            native.merge_equal_rows,
            native.mark_all,
            native.mark_each,
            native.put_span,
            native.BlockArrays,
        )

is_native = BlockArrays is not plain.BlockArrays
"""Whether the native form is in use."""

__all__ = [
    "BlockArrays",
    "as_token_ids",
    "extend_keys",
    "is_native",
    "mark_all",
    "mark_each",
    "merge_equal_rows",
    "put_span",
    "stretches",
]
