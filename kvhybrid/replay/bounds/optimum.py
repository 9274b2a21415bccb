"""The optimum of a small trace by an integer program, for any groups.

Requests run one at a time. Binary variables say whether a block is held between two consecutive requests that
have it in their prefix, and from where each request resumes. A request may resume at p if every group holds the
blocks that ``live(p)`` touches. A block can be held after a request if it was held before, or if the request
wrote it, which it does for every full block behind its hit; a state counts as written on every block boundary.
The blocks held between two requests are at most those of the pool; what a running request needs for itself is
left out, so no policy that runs requests one at a time hits more.

Solver: HiGHS (Huangfu and Hall 2018) through ``scipy.optimize.milp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.errors import InputError
from kvhybrid.replay.bounds.references import References
from kvhybrid.replay.trace import TraceRequest

MOST_VARIABLES = 50_000
"""Larger programs take hours: use a smaller slice of the trace, or larger blocks."""


def optimal_tokens(
    config: KVCacheConfig, requests: Sequence[TraceRequest], unit: int, part_tokens: int, seconds: float = 60.0
) -> int:
    """The most tokens that can be hit, ``unit`` being the tokens between two possible hits.

    Raises `InputError` if the program is too large, not solved within ``seconds``, or if scipy is missing.
    """
    if unit != config.scheduler_block_size:
        raise InputError("bounds=optimum: hits inside blocks are not supported; accepted: bounds=min")
    program = _Program(config, requests, unit, part_tokens)
    if len(program.worth) > MOST_VARIABLES:
        raise InputError(
            f"bounds=optimum: the integer program has {len(program.worth):,} variables, more than "
            f"{MOST_VARIABLES:,}; accepted: a smaller trace.limit, a larger pool.block_size, or bounds=min"
        )
    return program.solve(seconds)


class _Program:
    """Variables by index, and rows ``sum(coefficient * variable) <= limit``."""

    def __init__(
        self, config: KVCacheConfig, requests: Sequence[TraceRequest], unit: int, part_tokens: int
    ) -> None:
        self.worth: list[int] = []
        """Tokens that a variable is worth."""
        self._rows: list[dict[int, int]] = []
        self._limits: list[int] = []
        self._resume = self._resume_variables(requests, unit)
        held = [
            self._hold(group, config, requests, part_tokens)
            for group, entry in enumerate(config.groups)
            if entry.spec.cacheable and entry.private_blocks is None
        ]
        self._limit_pool(held, len(requests), config.num_blocks - 1)

    def _variable(self, worth: int = 0) -> int:
        self.worth.append(worth)
        return len(self.worth) - 1

    def _row(self, coefficients: dict[int, int], limit: int) -> None:
        self._rows.append(coefficients)
        self._limits.append(limit)

    def _resume_variables(self, requests: Sequence[TraceRequest], unit: int) -> list[dict[int, int]]:
        """Per request, the variable of every position that it may resume from; one of them at most is 1."""
        found = []
        for request in requests:
            positions = range(unit, request.num_prompt_tokens, unit)
            variables = {p: self._variable(worth=p) for p in positions}
            self._row(dict.fromkeys(variables.values(), 1), 1)
            found.append(variables)
        return found

    def _hold(
        self, group: int, config: KVCacheConfig, requests: Sequence[TraceRequest], part_tokens: int
    ) -> list[tuple[int, int, int]]:
        """Add the blocks of ``group``. Returns a variable, the request after which it is held, and the one before
        which it is held last, for every block and pair of consecutive requests that have it."""
        spec = config.groups[group].spec
        size = config.block_size_of(spec)
        references = References.of_requests(requests, size, part_tokens)
        spans: list[tuple[int, int, int]] = []
        latest: dict[int, tuple[int, int | None]] = {}
        """By block: the latest request that has it, and the variable that says whether it was held until then."""
        for request in range(len(requests)):
            numbers = references.numbers[references.starts[request] : references.starts[request + 1]].tolist()
            held: list[int | None] = []
            for index, number in enumerate(numbers):
                variable = None
                if number in latest:
                    writer, before = latest[number]
                    variable = self._variable()
                    spans.append((variable, writer, request))
                    self._written(variable, before, self._resume[writer], (index + 1) * size)
                held.append(variable)
                latest[number] = request, variable
            for position, resumes in self._resume[request].items():
                for blocks in spec.live_blocks(position, size):
                    for block in blocks:
                        self._needs(resumes, held[block])
        return spans

    def _written(self, variable: int, before: int | None, resumes: dict[int, int], end: int) -> None:
        """A block that ends at ``end`` is held after a request only if it was held before, or written there."""
        skipped = {at: 1 for position, at in resumes.items() if position >= end}
        if skipped:
            self._row({variable: 1, **({} if before is None else {before: -1}), **skipped}, 1)

    def _needs(self, resumes: int, held: int | None) -> None:
        self._row({resumes: 1} if held is None else {resumes: 1, held: -1}, 0)

    def _limit_pool(self, groups: list[list[tuple[int, int, int]]], num_requests: int, num_blocks: int) -> None:
        between: list[dict[int, int]] = [{} for _ in range(num_requests)]
        for spans in groups:
            for variable, start, end in spans:
                for request in range(start, end):
                    between[request][variable] = 1
        for held in between:
            if len(held) > num_blocks:
                self._row(held, num_blocks)

    def solve(self, seconds: float) -> int:
        """The optimal worth. Raises `InputError` as `optimal_tokens` does."""
        try:
            from scipy.optimize import Bounds, LinearConstraint, milp
            from scipy.sparse import csr_array
        except ImportError as error:
            raise InputError("bounds=optimum needs the package scipy: pip install scipy") from error
        if not self.worth:
            return 0
        entries = [(row, at, value) for row, found in enumerate(self._rows) for at, value in found.items()]
        rows, columns, values = (np.array(column) for column in zip(*entries, strict=True))
        matrix: Any = csr_array((values, (rows, columns)), shape=(len(self._rows), len(self.worth)))
        found = milp(
            -np.array(self.worth, float),
            constraints=LinearConstraint(matrix, ub=np.array(self._limits, float)),
            integrality=np.ones(len(self.worth)),
            bounds=Bounds(0, 1),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
        if found.status != 0:
            raise InputError(
                f"bounds=optimum: not solved within {seconds:.0f} seconds; accepted: a smaller trace.limit, or "
                "bounds=min"
            )
        best: float = -found.fun
        return round(best)
