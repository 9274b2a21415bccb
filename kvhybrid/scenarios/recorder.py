"""Records a cache manager's calls as a scenario, so that a bug report is one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from kvhybrid.cache.blocks import ComputedBlocks, KVCacheBlocks
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.files import output_file
from kvhybrid.scenarios.file import write_scenarios
from kvhybrid.scenarios.manager_config import config_of
from kvhybrid.scenarios.player import hit_answer
from kvhybrid.scenarios.pool_state import pool_state
from kvhybrid.scenarios.recorded_request import InexpressibleError, RecordedRequest, Step
from kvhybrid.scenarios.token_names import TokenNames

OPTIONS = {
    "num_lookahead_tokens": ("lookahead", 0),
    "num_external_computed_tokens": ("external_tokens", 0),
    "full_sequence_must_fit": ("full_sequence_must_fit", False),
    "reserved_blocks": ("reserved_blocks", 0),
    "has_scheduled_reqs": ("has_running", True),
    "delay_cache_blocks": ("delay_cache", False),
}
"""Arguments of ``allocate_slots``: their names in a scenario, and the values that need not be written."""


class Recorder:
    """Writes what a cache manager is asked and what it answers; ``kvhybrid scenario`` plays it again.

    ::

        with Recorder(engine.cache, Path("report.jsonl")):
            engine.generate(prompts)

    The manager must not have been used before. While a recorder is attached its calls go through the recorder;
    a manager without one is untouched. Token ids are renamed (see `TokenNames`): the file shows which prefixes
    were equal, not what they said. A call that no scenario can express ends the recording, and the scenario's
    ``note`` names it; the caller never notices. The file appears when the recorder is closed.
    """

    def __init__(self, manager: KVCacheManager, path: Path, *, id: str = "recorded") -> None:
        """
        Raises:
            ValueError: The manager was used before, or has something that a scenario cannot say, or ``path`` is
                something else than a regular file or a new one.
        """
        pool = manager.block_pool
        if manager.coordinator.tables or pool.free_queue() != list(range(1, pool.num_blocks)):
            raise ValueError("a recorder must be attached before the cache manager's first request")
        self.path = output_file("record", path)
        self._manager = manager
        self._scenario: dict[str, Any] = {
            "id": id,
            "title": f"recorded calls of {id}",
            "config": config_of(manager),
        }
        self._steps: list[Step] = []
        self._names = TokenNames()
        self._requests: dict[str, RecordedRequest] = {}
        self._taken: set[str] = set()
        self._recording = False

    @classmethod
    def attach(cls, manager: KVCacheManager, path: Path, *, id: str = "recorded") -> Recorder:
        """A recorder that records from now on, until `close`."""
        return cls(manager, path, id=id).__enter__()

    def __enter__(self) -> Recorder:
        if self._manager.recorder is not None:
            raise ValueError("another recorder is attached to this cache manager")
        self._recording = True
        self._manager.recorder = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Detach, and write the file.

        Raises:
            OSError: The file cannot be written.
        """
        if self._recording:
            names = {r.request.request_id: r.name for r in self._requests.values()}
            self._steps.append({"do": "state", "expect": pool_state(self._manager, names)})
            self._detach()
        write_scenarios(self.path, [{**self._scenario, "steps": self._steps}])

    def _detach(self) -> None:
        self._recording = False
        self._manager.recorder = None

    @contextmanager
    def _passed_on(self) -> Iterator[KVCacheManager]:
        """The manager itself, for as long as it works on one call."""
        self._manager.recorder = None
        try:
            yield self._manager
        finally:
            if self._recording:
                self._manager.recorder = self

    # ---- the calls, as the manager's own

    def get_computed_blocks(self, request: Request) -> ComputedBlocks:
        step: Step = {}
        with self._writing():
            seen = self._see(request)
            step = self._write(seen.lookup())
        with self._passed_on() as manager:
            found = manager.get_computed_blocks(request)
        if step:
            step["expect"] = hit_answer(found)
            seen.found, seen.junction = found, found.junction
        return found

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        *,
        num_encoder_tokens: int = 0,
        **options: Any,
    ) -> KVCacheBlocks | None:
        step: Step = {}
        with self._writing():
            seen = self._see(request)
            said = {OPTIONS[key][0]: value for key, value in options.items() if value != OPTIONS[key][1]}
            hit, watermark = num_new_computed_tokens, self._manager.watermark_blocks > 0
            asked = seen.allocate(num_new_tokens, hit, new_computed_blocks, num_encoder_tokens, said, watermark)
            step = self._write(asked)
        nothing = not (num_new_tokens or num_new_computed_tokens or options.get("num_external_computed_tokens"))
        if nothing and step:
            step["expect"] = {"error": "value"}
        with self._passed_on() as manager:
            added = manager.allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens,
                new_computed_blocks,
                num_encoder_tokens=num_encoder_tokens,
                **options,
            )
        if step:
            step["expect"] = {"refused": True} if added is None else {"new_blocks": list(added.get_block_ids())}
            if added is not None:
                seen.allocated(step, num_new_computed_tokens)
        return added

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        with self._writing():
            self._write(self._see(request).load_done(num_computed_tokens))
        with self._passed_on() as manager:
            manager.cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        seen = self._requests.get(request.request_id)
        if seen is not None and seen.request is request and seen.freed is None:
            seen.freed = self._write({"do": "free", "request": seen.name})
        with self._passed_on() as manager:
            manager.free(request)

    def new_step_starts(self) -> None:
        self._write({"do": "new_step"})
        with self._passed_on() as manager:
            manager.new_step_starts()

    def release_copies(self) -> None:
        # Taking the copies changes nothing; letting go of their ends does.
        copies = [list(pair) for pair in self._manager.take_copies()]
        self._write({"do": "take_copies", "expect": {"copies": copies}})
        with self._passed_on() as manager:
            manager.release_copies()

    def evict_blocks(self, block_ids: Iterable[int], group: int | None = None) -> None:
        blocks = [int(block) for block in block_ids]
        self._write({"do": "evict", "blocks": blocks})
        with self._passed_on() as manager:
            manager.evict_blocks(blocks, group)

    def reset_prefix_cache(self) -> bool:
        step = self._write({"do": "reset"})
        with self._passed_on() as manager:
            done = manager.reset_prefix_cache()
        step["expect"] = {"ok": done}
        if done:
            for seen in self._requests.values():
                seen.found = None
        return done

    # ---- writing

    def _write(self, step: Step) -> Step:
        self._steps.append(step)
        return step

    def _see(self, request: Request) -> RecordedRequest:
        """The record of ``request``, brought up to now."""
        seen = self._requests.get(request.request_id)
        if seen is None or seen.request is not request:
            seen = RecordedRequest(self._free_name(request.request_id), request)
            self._requests[request.request_id] = seen
            self._steps.extend(seen.submit(self._names))
        self._steps.extend(seen.catch_up(self._names))
        return seen

    def _free_name(self, request_id: str) -> str:
        name = request_id or "request"
        for number in range(2, len(self._taken) + 3):
            if name not in self._taken:
                break
            name = f"{request_id or 'request'}#{number}"
        self._taken.add(name)
        return name

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """End the recording, and not the run, at a call that cannot be written."""
        try:
            yield
        except InexpressibleError as error:
            self._scenario["note"] = f"recorded up to a call that a scenario cannot express: {error}"
            self._detach()
