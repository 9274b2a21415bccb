"""A cache of transformers for one sequence at a time, which keeps everything in the pages of the byte pool."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin

from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache
from kvhybrid.models.transformers.reach import Reach
from kvhybrid.models.transformers.state import HeldState
from kvhybrid.models.transformers.token_layer import PagedTokens, paged
from kvhybrid.specs import KVCacheSpec

LAYER = re.compile(r"layer(\d+)(?:\.(state|indexer))?")
"""The names that `kvhybrid.planning.rules` gives to the caches of a layer."""


@dataclass(frozen=True)
class StatePages:
    """The state of one layer: its tensors, and the pages that keep them."""

    name: str
    pages: LayerCache
    tensors: tuple[HeldState, ...]


class PagedCache:
    """Binds the layers of ``template``, the cache that the model made for a first few tokens, to pages.

    The model gets the template itself, so a model with a cache class of its own gets one of that class.
    """

    def __init__(
        self,
        model: nn.Module,
        template: Any,
        specs: Mapping[str, KVCacheSpec],
        caches: Mapping[str, LayerCache],
    ) -> None:
        self.cache = template
        self._specs = specs
        self._layers: dict[int, PagedTokens] = {}
        self._states: list[StatePages] = []
        for index, layer in enumerate(template.layers):
            if isinstance(layer, CacheLayerMixin):
                self._layers[index] = template.layers[index] = paged(layer)
        self._tokens: dict[str, tuple[PagedTokens, bool]] = {}
        for name, spec in specs.items():
            index, indexer = _place(name)
            if spec.state:
                held = tuple(_held(model, template, index, part) for part in caches[name])
                self._states.append(StatePages(name, caches[name], held))
                continue
            layer = self._layers[index]
            self._tokens[name] = (layer, indexer)
            if indexer:
                layer.indexer_pages = caches[name]
            else:
                layer.pages = caches[name]

    def bind_tokens(self, batch: ForwardBatch, sequence: int, start: int, end: int) -> None:
        """Bind to the tokens from ``start`` to ``end`` of a sequence, all of which are in the batch."""
        row = batch.query_starts[sequence] - batch.context_lens[sequence]
        rows = slice(row + start, row + end)
        for layer in self._layers.values():
            layer.num_past = start
        made: dict[tuple[int, int], Reach] = {}
        for name, (layer, indexer) in self._tokens.items():
            group, spec = batch.group_of_layer[name], self._specs[name]
            first = min((part.start for part in spec.live(start) if part), default=start)
            key = (id(group), first)
            if key not in made:
                made[key] = Reach.of(group, sequence, rows, first, end)
            if indexer:
                layer.indexer_reach = made[key]
            else:
                layer.reach = made[key]

    def load_states(self, batch: ForwardBatch, sequence: int) -> None:
        """Load the states of a sequence before the batch."""
        context = batch.context_lens[sequence]
        for state in self._states:
            for tensor, page in _pages_of(state, batch.group_of_layer[state.name], sequence, context - 1):
                if context:
                    tensor.load(page)
                else:
                    tensor.clear()
        self._mark_states(present=context > 0)

    def store_states(self, batch: ForwardBatch, sequence: int) -> None:
        """Store the states of a sequence after the batch."""
        row, end_row = batch.query_starts[sequence : sequence + 2]
        last = batch.context_lens[sequence] + end_row - row - 1
        for state in self._states:
            for tensor, page in _pages_of(state, batch.group_of_layer[state.name], sequence, last):
                tensor.store(page)

    def _mark_states(self, present: bool) -> None:
        for layer in self.cache.layers:
            flags = getattr(layer, "has_previous_state", None)
            if isinstance(flags, dict):
                flags.update(dict.fromkeys(flags, present))


def _place(name: str) -> tuple[int, bool]:
    found = LAYER.fullmatch(name)
    assert found is not None, name
    return int(found[1]), found[2] == "indexer"


def _pages_of(
    state: StatePages, group: GroupBatch, sequence: int, position: int
) -> Iterator[tuple[HeldState, Tensor]]:
    """The tensors of a state with the pages that have the state after ``position``."""
    block = group.block_table_SN[sequence, max(position, 0) // group.block_size]
    for tensor in state.tensors:
        yield tensor, state.pages[tensor.part][block]


def _held(model: nn.Module, cache: Any, index: int, part: str) -> HeldState:
    """Where transformers keeps the tensor that observation calls ``part`` of layer ``index``."""
    name, _, entry = part.partition(".")
    layer = cache.layers[index] if index < len(cache.layers) else None
    for holder, key in (
        (getattr(layer, name, None), int(entry or 0)),
        (getattr(cache, name, None), index),
    ):
        if isinstance(holder, (dict, list)) and isinstance(holder[key], Tensor):
            return HeldState(part, holder, key, holder[key])
    for path, module in model.named_modules():
        number = re.search(r"\.(\d+)(?:\.|$)", path)
        if number and int(number[1]) == index and isinstance(vars(module).get(name), Tensor):
            return HeldState(part, module, name, getattr(module, name))
    raise AssertionError(f"layer {index}: {part} is in neither the cache nor a module")
