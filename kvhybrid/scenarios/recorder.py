"""Records a cache manager's calls as a scenario, so that a bug report is one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from kvhybrid.cache.blocks import ComputedBlocks, KVCacheBlocks
from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.cache.coordinators.request_tables import RequestTables
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.scenarios.file import scenario_output, write_scenarios
from kvhybrid.scenarios.form import ScenarioStep
from kvhybrid.scenarios.manager_config import config_of
from kvhybrid.scenarios.player import hit_answer
from kvhybrid.scenarios.pool_state import pool_state
from kvhybrid.scenarios.recorded_request import InexpressibleError, RecordedRequest
from kvhybrid.scenarios.token_names import TokenNames

ALLOCATION: Final = signature(KVCacheManager.allocate_slots)


class Recorder:
    """Records the calls of a cache manager and their answers; ``kvhybrid scenario`` plays them again.

    ::

        with Recorder(Path("report.jsonl")) as recorder:
            engine = Engine(model, cache_manager=recorder.manager)
            engine.generate(prompts)

    Token ids are renamed (see `TokenNames`): the file shows which prefixes were equal, not their text. A call that
    no scenario can express ends the recording, and the scenario's ``note`` says so; the cache manager continues to
    work. The file is written when the recorder is closed, if it has created a manager.
    """

    def __init__(self, path: Path, *, id: str = "recorded") -> None:
        """``id`` is the scenario's id.

        Raises:
            InputError: ``path`` is neither a new name nor a scenario file, which is replaced.
        """
        self.path = scenario_output("record", path)
        self.is_recording = False
        self._manager: RecordingManager | None = None
        self._scenario: dict[str, Any] = {"id": id, "title": f"recorded calls of {id}"}
        self._steps: list[ScenarioStep] = []
        self._token_names = TokenNames()
        self._requests: dict[str, RecordedRequest] = {}
        self._names: set[str] = set()

    def manager(self, config: KVCacheConfig, **options: Any) -> RecordingManager:
        """Create a cache manager that is recorded until `close`. The arguments are those of `KVCacheManager`.

        Raises:
            ValueError: The recorder already has a manager, or no scenario can express this one.
        """
        if self._manager is not None:
            raise ValueError(f"{self.path} is the recording of another cache manager")
        manager = RecordingManager(self, config, **options)
        try:
            self._scenario["config"] = config_of(manager)
        except ValueError as error:
            raise ValueError(f"the cache manager cannot be recorded: {error}") from error
        self._manager, self.is_recording = manager, True
        return manager

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop recording, and write the file.

        Raises:
            OSError: The file cannot be written.
        """
        if self._manager is None:
            return
        if self.is_recording:
            names = {seen.request.request_id: seen.name for seen in self._requests.values()}
            self.write({"do": "state", "expect": pool_state(self._manager, names)})
            self.is_recording = False
        write_scenarios(self.path, [{**self._scenario, "steps": self._steps}])

    # ---- called by the manager

    def write(self, step: ScenarioStep) -> ScenarioStep:
        """Append ``step`` unless the recording has ended; its ``expect`` may be added later."""
        if self.is_recording:
            self._steps.append(step)
        return step

    def record_call(
        self, request: Request, step_of: Callable[[RecordedRequest], ScenarioStep]
    ) -> tuple[RecordedRequest, ScenarioStep] | None:
        """Append the step that ``step_of`` returns for a call with ``request``, after the steps that precede it.

        Returns the record of the request and the step, or None if the recording has ended or ends with this call.
        """
        if not self.is_recording:
            return None
        try:
            seen = self._see(request)
            return seen, self.write(step_of(seen))
        except InexpressibleError as error:
            self.end(error)
            return None

    def end(self, why: InexpressibleError) -> None:
        """Stop recording because no scenario can express a call."""
        if self.is_recording:
            self._scenario["note"] = f"recorded up to a call that a scenario cannot express: {why}"
            self.is_recording = False

    def freed(self, request: Request) -> None:
        """Called when the blocks of ``request`` are freed, at its end or because it is preempted."""
        seen = self._requests.get(request.request_id)
        if seen is not None and seen.request is request and seen.freed is None:
            seen.freed = self.write({"do": "free", "request": seen.name})

    def forget_hits(self) -> None:
        """Called when all keys are removed: earlier look-ups can no longer be adopted."""
        for seen in self._requests.values():
            seen.found = None

    def _see(self, request: Request) -> RecordedRequest:
        """The record of ``request``, updated to its current state."""
        seen = self._requests.get(request.request_id)
        if seen is None or seen.request is not request:
            seen = RecordedRequest(self._free_name(request.request_id), request)
            self._requests[request.request_id] = seen
            self._steps.extend(seen.submit(self._token_names))
        self._steps.extend(seen.catch_up(self._token_names))
        return seen

    def _free_name(self, request_id: str) -> str:
        name = request_id or "request"
        for number in range(2, len(self._names) + 3):
            if name not in self._names:
                break
            name = f"{request_id or 'request'}#{number}"
        self._names.add(name)
        return name


class RecordingManager(KVCacheManager):
    """A cache manager that reports its calls to a `Recorder`."""

    def __init__(self, recorder: Recorder, config: KVCacheConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self._recorder = recorder

    def get_computed_blocks(self, request: Request) -> ComputedBlocks:
        recorded = self._recorder.record_call(request, RecordedRequest.lookup)
        found = super().get_computed_blocks(request)
        if recorded:
            seen, step = recorded
            step["expect"] = hit_answer(found)
            seen.found, seen.junction = found, found.junction
        return found

    def allocate_slots(self, request: Request, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        call = ALLOCATION.bind(self, request, *args, **kwargs)
        call.apply_defaults()
        has_watermark = self.watermark_blocks > 0
        recorded = self._recorder.record_call(request, lambda seen: seen.allocate(call.arguments, has_watermark))
        added = super().allocate_slots(request, *args, **kwargs)
        if recorded:
            seen, step = recorded
            seen.allocated(step, call.arguments["num_new_computed_tokens"], added)
        return added

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        self._recorder.record_call(request, lambda seen: seen.load_done(num_computed_tokens))
        super().cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        self._recorder.freed(request)
        super().free(request)

    def pop_blocks_for_free(self, request: Request) -> RequestTables | None:
        self._recorder.end(InexpressibleError(f"{request.request_id} ends, and its blocks stay held"))
        return super().pop_blocks_for_free(request)

    def new_step_starts(self) -> None:
        self._recorder.write({"do": "new_step"})
        super().new_step_starts()

    def discard_step(self) -> None:
        blocks = self.block_pool.keys.keyed_in_step().tolist()
        if blocks:
            self._recorder.write({"do": "evict", "blocks": blocks})
        super().discard_step()

    def release_copies(self) -> None:
        # Only releasing the blocks of copies changes the state; taking the copies does not.
        copies = [list(pair) for pair in self.take_copies()]
        self._recorder.write({"do": "take_copies", "expect": {"copies": copies}})
        super().release_copies()

    def evict_blocks(self, block_ids: Iterable[int], group: int | None = None) -> None:
        blocks = [int(block) for block in block_ids]
        self._recorder.write({"do": "evict", "blocks": blocks})
        super().evict_blocks(blocks, group)

    def forget(self, request: Request) -> None:
        before = self.block_pool.keys.number_of.copy()
        super().forget(request)
        lost = np.flatnonzero((before > 0) & (self.block_pool.keys.number_of == 0))
        self._recorder.write({"do": "evict", "blocks": lost.tolist()})

    def reset_prefix_cache(self) -> bool:
        step = self._recorder.write({"do": "reset"})
        done = super().reset_prefix_cache()
        step["expect"] = {"ok": done}
        if done:
            self._recorder.forget_hits()
        return done
