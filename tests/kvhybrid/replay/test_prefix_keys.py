"""Keys from a trace: equal exactly where the prefixes are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kvhybrid.replay.prefix_keys import PrefixKeys

PART = 12
"""Tokens of one id."""
PROMPTS = [([0, 1, 2], 36), ([0, 1, 2], 30), ([0, 1, 3], 29), ([0, 4], 24), ([5], 7), ([0], 12), ([0, 1, 2], 31)]


def tokens(prefix_ids: list[int], num_tokens: int) -> list[tuple[int, int]]:
    """Contents to which these ids could belong."""
    return [(prefix_ids[place // PART], place % PART) for place in range(num_tokens)]


@pytest.mark.parametrize("unit", [1, 3, 4, 5, 7, 12, 18, 24, 40])
def test_two_keys_are_equal_exactly_when_their_prefixes_are(unit: int) -> None:
    keys = PrefixKeys(unit, PART)
    units = []
    for prefix_ids, num_tokens in PROMPTS:
        found = keys.of_tokens(np.array(prefix_ids, np.int64), num_tokens)
        assert len(found) == num_tokens // unit
        units += [(key, tokens(prefix_ids, (i + 1) * unit)) for i, key in enumerate(found)]
    for (key, prefix), (other_key, other_prefix) in product(units, repeat=2):
        assert (key == other_key) == (prefix == other_prefix)


def test_what_is_generated_is_like_nothing_else() -> None:
    keys = PrefixKeys(4, PART)
    first, second = keys.new_request(), keys.new_request()
    outputs = [keys.of_output(request, index) for request in (first, second) for index in range(300)]
    prompt = keys.of_tokens(np.arange(1000, dtype=np.int64), 1000 * PART)
    assert len({*outputs, *prompt}) == len(outputs) + len(prompt)
