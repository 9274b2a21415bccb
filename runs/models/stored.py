"""What a real model stores of a sequence: every tensor that it keeps, found without knowing any cache class.

The counterpart of `kvhybrid.planning.observed`, with nothing in common: real weights on a CPU instead of the meta
device, `generate` instead of a forward pass, and every tensor that can be reached instead of named attributes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from kvhybrid.planning.rules import CacheOptions, layer_specs
from kvhybrid.specs import KVCacheSpec

Path = tuple[Any, ...]

OTHER_OUTPUTS = ("sequences",)
"""Tensors that `generate` returns and that are not kept for the next token."""


def stored_bytes(model: nn.Module, token_ids_1T: Tensor) -> dict[int, int]:
    """Bytes that each layer of ``model`` stores once it has read ``token_ids_1T``, by index of the layer.

    Layers that store nothing have no entry. Scalars and vectors, such as a number of tokens, do not count.
    """
    before = [tensor for _, tensor in _held_by_modules(model)]
    output = model.generate(  # type: ignore[operator]
        token_ids_1T, max_new_tokens=1, do_sample=False, use_cache=True, return_dict_in_generate=True
    )
    kept = {name: value for name, value in output.items() if name not in OTHER_OUTPUTS}
    found = [*_tensors(kept), *_held_by_modules(model)]
    counted: set[tuple[Any, ...]] = set()
    sizes: Counter[int] = Counter()
    for path, tensor in found:
        storage = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
        if tensor.ndim > 1 and not any(tensor is old for old in before) and storage not in counted:
            counted.add(storage)
            layer = next((part for part in path if isinstance(part, int)), None)
            if layer is None:
                raise ValueError(f"{'.'.join(map(str, path))}: a tensor of no layer")
            sizes[layer] += tensor.numel() * tensor.element_size()
    return {layer: size for layer, size in sorted(sizes.items()) if size}


def planned_bytes(seen: Any, num_tokens: int) -> dict[int, int]:
    """Bytes that each layer keeps for the token after ``num_tokens`` by the plan of an observation, by index.

    The inputs of a convolution that transformers stores but never reads are included.
    """
    sizes: Counter[int] = Counter()
    for name, spec in layer_specs(seen, CacheOptions(all_stored=True)).items():
        sizes[int(name.removeprefix("layer").partition(".")[0])] += _bytes_after(spec, num_tokens)
    return {layer: size for layer, size in sorted(sizes.items()) if size}


def lengths_of(specs: dict[str, KVCacheSpec]) -> tuple[int, ...]:
    """Numbers of tokens at which plan and model can be compared: below, at and above the largest window.

    transformers keeps the last C - 1 tokens of a chunk of C, of which the mask hides those of the chunk before; so
    a model with chunks is only compared where a chunk lacks one token, when all of them are read.
    """
    chunks = {spec.chunk for spec in specs.values() if hasattr(spec, "chunk")}
    if chunks:
        (chunk,) = chunks
        return (chunk - 1, 2 * chunk - 1, 3 * chunk - 1)
    largest = max((spec.window for spec in specs.values() if hasattr(spec, "window")), default=6)
    return (4, largest - 1, largest, 2 * largest + 1)


def _bytes_after(spec: KVCacheSpec, num_tokens: int) -> int:
    if spec.state:
        return spec.page_bytes
    return sum(map(len, spec.live(num_tokens))) * spec.page_bytes // spec.block_size


def _tensors(value: Any, path: Path = (), visited: set[int] | None = None) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor that can be reached from ``value`` through attributes, mappings and sequences."""
    visited = set() if visited is None else visited
    if isinstance(value, Tensor):
        yield path, value
        return
    if id(value) in visited or isinstance(value, (nn.Module, type)):
        return
    visited.add(id(value))
    if isinstance(value, dict):
        entries: Any = value.items()
    elif isinstance(value, (list, tuple)):
        entries = enumerate(value)
    else:
        entries = getattr(value, "__dict__", {}).items()
    for name, entry in entries:
        yield from _tensors(entry, (*path, name), visited)


def _held_by_modules(model: nn.Module) -> Iterator[tuple[Path, Tensor]]:
    """The tensors that modules hold in attributes that are neither parameters nor buffers."""
    for place, module in model.named_modules():
        path = tuple(int(part) if re.fullmatch(r"\d+", part) else part for part in place.split("."))
        held = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        for rest, tensor in _tensors(held):
            yield (*path, *rest), tensor
