"""Random calls of the native kernel: right ones, wrong arguments, and pools whose arrays were scribbled over.

``python -m tests.managers.kernel.fuzz SEED CALLS`` runs it alone, best under sanitizers (test_sanitized.py).
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvhybrid.managers.kernel import (
    BlockArrays,
    as_token_ids,
    extend_keys,
    mark_all,
    mark_each,
    merge_equal_rows,
    plain,
    put_span,
    stretches,
)
from tests.managers.kernel.side import BLOCKS, GROUPS, NUMBERS, Side

REFUSALS = (TypeError, ValueError, BufferError, IndexError, OverflowError)
EXTREMES = (-(2**31), -2, -1, 0, 1, BLOCKS - 1, BLOCKS, NUMBERS - 1, NUMBERS, 10**6, 2**31 - 2, 2**31 - 1)
BIG = (*EXTREMES, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30)
METHODS = {
    "allocate": "vr",
    "count_free": "r",
    "hold": "rV",
    "release": "rVnVn",
    "register_rows": "vrvR",
    "forget": "vRn",
    "are_keyed_under": "vrv",
    "first_missing": "vvnn",
    "last_missing": "vvnn",
    "last_present": "vvnn",
    "last_run": "vvnn",
    "gather": "vvR",
    "use_index": "R",
}
FUNCTIONS: dict[Callable[..., Any], str] = {
    put_span: "Vnnnn",
    stretches: "vv",
    merge_equal_rows: "R",
    mark_all: "Rvvn",
    mark_each: "Rvvn",
}


class Fuzz:
    """One pool, and what is done to it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.side = Side(BlockArrays)
        self.counts: Counter[str] = Counter()
        """``answers`` and ``refusals`` of calls, ``corruptions``, and the calls of each name."""

    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.02:
            self.side = Side(BlockArrays)
        elif chance < 0.06:
            self.corrupt()
        elif chance < 0.55:
            self.right_call()
        elif chance < 0.85:
            name, kinds = self.rng.choice(list(METHODS.items()))
            self.call(name, getattr(self.side.arrays, name), self.arguments(kinds))
        elif chance < 0.93:
            function, kinds = self.rng.choice(list(FUNCTIONS.items()))
            self.call(function.__name__, function, self.arguments(kinds))
        elif chance < 0.95:
            self.call("BlockArrays", BlockArrays, self.arguments("RRR"))
        else:
            self.hash()

    def call(self, name: str, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """A refusal leaves the pool as it was."""
        side = self.side
        before = (side.records.tobytes(), side.counts.tobytes(), side.index.tobytes())
        self.counts[name] += 1
        try:
            function(*arguments)
            self.counts["answers"] += 1
        except REFUSALS:
            self.counts["refusals"] += 1
            assert before == (side.records.tobytes(), side.counts.tobytes(), side.index.tobytes()), name

    def corrupt(self) -> None:
        """Scribble over one entry of the pool's arrays."""
        side, rng = self.side, self.rng
        self.counts["corruptions"] += 1
        part = rng.choice([*(plain.BLOCK.fields or ()), "index", "counts"])
        value = rng.choice(EXTREMES)
        if part == "index":
            side.index[rng.randrange(GROUPS), rng.randrange(NUMBERS)] = value
        elif part == "counts":
            side.counts[rng.randrange(4), rng.randrange(GROUPS)] = rng.choice([*EXTREMES, 2**63 - 1, -(2**63)])
        else:
            side.records[part][rng.randrange(BLOCKS)] = value

    # ---- right calls, on whatever the pool holds by now

    def right_call(self) -> None:
        rng, side = self.rng, self.side
        arrays, groups = side.arrays, np.array([rng.randrange(GROUPS)], np.int32)
        ids = np.array(rng.sample(range(1, BLOCKS), rng.randint(1, 6)), np.int32)
        numbers = np.array(rng.sample(range(1, NUMBERS), len(ids)), np.int32)
        room = np.zeros(len(ids), np.int32)
        name = rng.choice(
            ["allocate", "register_rows", "register_rows", "hold", "release", "forget", "first_missing"]
        )
        if name == "allocate":
            is_free = (side.records["number"][ids] == 0) & (side.refs[ids] == 0)
            arguments: tuple[Any, ...] = (groups, ids[is_free])
        elif name == "register_rows":
            unkeyed = ids[side.records["number"][ids] == 0]
            arguments = (groups, unkeyed, numbers[: len(unkeyed)], rng.choice([None, np.zeros((1, 9), np.int32)]))
        elif name == "hold":
            arguments = (ids, room)
        elif name == "release":
            arguments = (ids[side.refs[ids] > 0], side.stack, 0, room, rng.randrange(100))
        elif name == "forget":
            arguments = (ids, rng.choice([None, np.zeros((2, len(ids)), np.int32)]), rng.randrange(2))
        else:
            arguments = (groups, numbers, 0, len(numbers))
        self.call(name, getattr(arrays, name), arguments)

    # ---- wrong arguments

    def arguments(self, kinds: str) -> list[Any]:
        rng = self.rng
        made: list[Any] = [self.number() if kind == "n" else self.array(kind) for kind in kinds]
        if rng.random() < 0.1 and len(made) > 1:
            made[rng.randrange(len(made))] = rng.choice(made)  # twice the same object
        if rng.random() < 0.03:
            made = rng.choice([made[:-1], [*made, 1]])
        return made

    def number(self) -> Any:
        rng = self.rng
        if rng.random() < 0.05:
            return rng.choice([None, 1.5, "1", True, np.int64(2)])
        return rng.randint(-1, NUMBERS) if rng.random() < 0.7 else rng.choice(BIG)

    def array(self, kind: str) -> Any:
        rng = self.rng
        if rng.random() < 0.06:
            return rng.choice(
                [None, 5, [1, 2], b"12345678", bytearray(8), memoryview(bytearray(8)).cast("i"), "12"]
            )
        if rng.random() < 0.08:
            return self.own_array()
        sizes = [0, 1, 2, 3, 5, BLOCKS, 40]
        shape: list[int] = [rng.choice(sizes)]
        if rng.random() < (0.6 if kind in "rR" else 0.1):
            shape = [rng.choice([0, 1, 2, GROUPS]), *shape]
        if rng.random() < 0.02:
            shape = rng.choice([[], [2, *shape, 2]])
        values = EXTREMES if rng.random() < 0.3 else range(BLOCKS if kind in "rR" else GROUPS)
        array = np.array([rng.choice(values) for _ in range(int(np.prod(shape)))], np.int32).reshape(shape)
        return self.disguised(array)

    def disguised(self, array: np.ndarray) -> np.ndarray:
        """``array``, or one that is laid out, typed or protected in another way."""
        rng = self.rng
        way = rng.choice(
            ["as it is"] * 6 + ["reversed", "strided", "type", "read only", "misaligned", "broadcast"]
        )
        if way == "reversed":
            return array[..., ::-1] if array.ndim else array
        if way == "strided":
            return np.repeat(array, 3, axis=-1)[..., ::3] if array.ndim else array
        if way == "type":
            return array.astype(rng.choice([np.int64, np.int16, np.uint32, np.float32, np.float64, ">i4", bool]))
        if way == "read only":
            array.flags.writeable = False
        elif way == "misaligned":
            return (
                np.frombuffer(bytearray(b"x" + array.tobytes()), np.uint8)[1:].view(np.int32).reshape(array.shape)
            )
        elif way == "broadcast":
            return np.broadcast_to(array[..., :1], (*array.shape[:-1], 7)) if array.ndim and array.size else array
        return array

    def own_array(self) -> np.ndarray:
        """A view of the pool's own arrays."""
        side, rng = self.side, self.rng
        fields = [side.records[field] for field in ("refs", "number", "ahead", "irregular")]
        return rng.choice(
            [*fields, side.index, side.index[0], side.counts.view(np.int32), side.stack, side.records]
        )

    # ---- keys

    def hash(self) -> None:
        rng = self.rng
        tokens: list[Any] = [rng.choice([0, 1, 255, 2**30, 2**32 - 1]) for _ in range(rng.randrange(40))]
        if tokens and rng.random() < 0.5:
            wrong = [*BIG, None, "a", 1.5, True, np.int32(3), np.float32(1)]
            tokens[rng.randrange(len(tokens))] = rng.choice(wrong)
        if rng.random() < 0.4:
            self.call("as_token_ids", as_token_ids, (rng.choice([tokens, tuple(tokens), iter(tokens), 7, None]),))
            return
        keys: list[Any] = [rng.choice([bytes(32), bytes(32), b"", 7])] * rng.choice([0, 0, 1, 3])
        unit, root = rng.choice([1, 2, 3, 16, 17, 0, -1, 2**62]), rng.choice([bytes(32), bytes(32), b"short"])
        together = rng.random() < 0.05
        self.call(
            "extend_keys", extend_keys, (tokens if together else keys, tokens, unit, root, rng.random() < 0.7)
        )


def fuzz(seed: int, calls: int) -> Counter[str]:
    """Make ``calls`` random steps. Raises what the kernel may not raise; returns what happened how often."""
    random_calls = Fuzz(seed)
    for _ in range(calls):
        random_calls.step()
    return random_calls.counts


if __name__ == "__main__":
    print(dict(fuzz(int(sys.argv[1]), int(sys.argv[2]))))
