"""The passes over the arrays of a cache, and the hashing of keys: native where they could be compiled.

``KVHYBRID_KERNEL=plain`` in the environment chooses the plain form.
"""

from __future__ import annotations

import os
from contextlib import suppress

from kvhybrid.managers.kernel import plain

BlockArrays: type[plain.BlockArrays] = plain.BlockArrays
as_token_ids, extend_keys = plain.as_token_ids, plain.extend_keys
stretches, gather_alike = plain.stretches, plain.gather_alike
mark_all, mark_each, put_span = plain.mark_all, plain.mark_each, plain.put_span
if os.environ.get("KVHYBRID_KERNEL") != "plain":
    # There may have been no compiler at installation, or one that an older form of the kernel is left of.
    with suppress(ImportError, AttributeError):
        from kvhybrid.managers.kernel import _native as native

        as_token_ids, extend_keys, stretches, gather_alike, mark_all, mark_each, put_span, BlockArrays = (
            native.as_token_ids,
            native.extend_keys,
            native.stretches,
            native.gather_alike,
            native.mark_all,
            native.mark_each,
            native.put_span,
            native.BlockArrays,
        )

is_native = BlockArrays is not plain.BlockArrays
"""Whether the native form runs."""

__all__ = [
    "BlockArrays",
    "as_token_ids",
    "extend_keys",
    "gather_alike",
    "is_native",
    "mark_all",
    "mark_each",
    "put_span",
    "stretches",
]
