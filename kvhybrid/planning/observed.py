"""Observation: what every layer of a transformers model keeps, found by running the model without weights.

The model is built from its config on torch's meta device, where tensors have a shape and a dtype but no data. It
then reads a few tokens with its own cache, whose tensors show what each layer keeps. Nothing here depends on a
model type; `kvhybrid.planning.rules` converts the result to specs.
"""

from __future__ import annotations

import inspect
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvhybrid.errors import one_line
from kvhybrid.planning.error import PlanningError

NUM_TOKENS = 2
"""Number of tokens that the model reads: enough for every layer to write, and fewer than any window."""
DTYPES = ("bfloat16", "float16", "float32")
MOST_SHOWN = 200
"""Maximum length of transformers' message in an error, in characters."""

CACHES = ("cache", "past_key_values", "cache_params")
"""Attributes of a model's output with its cache: in transformers 5.24, in earlier versions, and in their Mamba."""
WARNING = "warn_if_padding_and_no_attention_mask"
"""A method of transformers' models that needs the values of the tokens, which the meta device does not have."""


@dataclass(frozen=True)
class KeptTensor:
    """One tensor that a layer keeps for one sequence, without its batch dimension."""

    name: str
    """The attribute that holds it, e.g. ``keys``, or with its index if there are several: ``conv_states.0``."""
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ObservedLayer:
    """What one layer keeps after `NUM_TOKENS` tokens."""

    index: int
    tensors: tuple[KeptTensor, ...]
    window: int | None = None
    """Tokens that its cache is configured to keep for a window or a chunk."""


@dataclass(frozen=True)
class Observation:
    """What a whole model keeps."""

    model_type: str
    num_layers: int
    layers: tuple[ObservedLayer, ...]
    """The layers that have a cache, by index; layers that read another layer's cache are not included."""
    config: Mapping[str, Any]
    """The config of the decoder, with transformers' defaults filled in."""
    num_parameters: int
    dtype: str
    """Element type of the weights."""


def observe(config: Mapping[str, Any], dtype: str | None = None) -> Observation:
    """What each layer of the model described by ``config``, the content of a ``config.json``, keeps.

    ``dtype`` is that of the weights, by default the config's own, or bfloat16. Only the decoder of a multimodal
    model is built. Raises `PlanningError` for a config that transformers cannot run, for a model without a cache,
    and for an encoder-decoder.
    """
    parsed = _parse(config)
    name = dtype or _dtype_of(config)
    with _quiet(), _refusals_of(parsed.model_type):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                parsed, dtype=torch.bfloat16, attn_implementation="eager", trust_remote_code=False
            ).eval()
        for module in model.modules():
            if hasattr(module, WARNING):
                setattr(module, WARNING, lambda *_: None)  # it compares tokens with the padding token
        layers = kept_layers(model, torch.zeros(1, NUM_TOKENS, dtype=torch.long, device="meta"))
    if not layers:
        raise PlanningError(f"model_type {parsed.model_type!r}: the model keeps no cache")
    return Observation(
        model_type=parsed.model_type,
        num_layers=parsed.get_text_config().num_hidden_layers,
        layers=tuple(_in_dtype(layer, name) for layer in layers),
        config=parsed.to_dict(),
        num_parameters=sum(weight.numel() for weight in model.parameters()),
        dtype=name,
    )


def kept_layers(model: nn.Module, token_ids_1T: Tensor) -> tuple[ObservedLayer, ...]:
    """What ``model``, on any device, keeps of one sequence: in the cache that it returns or, if it returns none,
    in one that is passed to it, and in its own modules."""
    before = dict(_module_tensors(model))
    with torch.no_grad():
        output = model(input_ids=token_ids_1T, use_cache=True)
        cache = next((found for name in CACHES if (found := getattr(output, name, None)) is not None), None)
        given = next((name for name in CACHES if name in inspect.signature(model.forward).parameters), None)
        if cache is None and given is not None and getattr(model.config, "is_decoder", True):
            cache = DynamicCache(config=model.config)
            model(input_ids=token_ids_1T, use_cache=True, **{given: cache})
    tensors: dict[int, list[KeptTensor]] = {}
    windows: dict[int, int] = {}
    for index, layer in enumerate(getattr(cache, "layers", ())):
        tensors[index] = [_described(name, tensor) for name, tensor in _layer_tensors(layer)]
        if getattr(layer, "is_sliding", False):
            windows[index] = int(layer.sliding_window)
    for (index, name), tensor in (*_beside_layers(cache), *_module_tensors(model)):
        if before.get((index, name)) is not tensor:
            tensors.setdefault(index, []).append(_described(name, tensor))
    return tuple(
        ObservedLayer(index, tuple(kept), windows.get(index)) for index, kept in sorted(tensors.items()) if kept
    )


def _parse(config: Mapping[str, Any]) -> Any:
    """The config of the decoder, as transformers reads it."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise PlanningError(
            f"model_type must be a string, found {model_type!r}; accepted: a Hugging Face config.json"
        )
    if model_type not in CONFIG_MAPPING:
        close = get_close_matches(model_type, CONFIG_MAPPING, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise PlanningError(f"model_type {model_type!r}: unknown to transformers {transformers.__version__}{hint}")
    # Compression of the weights does not affect the cache, and may need a library that is not installed.
    content = {key: value for key, value in config.items() if key != "quantization_config"}
    with _quiet(), _refusals_of(model_type):
        parsed = CONFIG_MAPPING[model_type].from_dict(content)
    if getattr(parsed, "is_encoder_decoder", False):
        raise PlanningError(f"model_type {model_type!r}: an encoder-decoder; accepted: decoder-only models")
    with _refusals_of(model_type):
        inner = parsed.get_text_config(decoder=True)
    for candidate in (inner, parsed):
        if candidate.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            return candidate
    raise PlanningError(f"model_type {model_type!r}: transformers has no causal language model of this type")


@contextmanager
def _refusals_of(model_type: str) -> Iterator[None]:
    """Convert exceptions of transformers about a config to one line."""
    try:
        yield
    except Exception as error:
        said = one_line(error)
        raise PlanningError(
            f"model_type {model_type!r}: transformers {transformers.__version__} cannot run this config without "
            f"weights: {type(error).__name__}: {said[:MOST_SHOWN]}{'…' if len(said) > MOST_SHOWN else ''}"
        ) from error


def _dtype_of(config: Mapping[str, Any]) -> str:
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, Mapping) else {}):
        found = part.get("dtype") or part.get("torch_dtype")
        if found in DTYPES:
            return str(found)
    return "bfloat16"


def _layer_tensors(layer: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a cache layer that have a batch dimension, including those in dicts."""
    held = dict(vars(layer))
    if held.get("values") is held.get("keys"):
        held.pop("values", None)  # one storage under two names
    for name, value in held.items():
        for entry, tensor in value.items() if isinstance(value, dict) else (("", value),):
            if isinstance(tensor, Tensor) and tensor.ndim > 1:
                yield f"{name}.{entry}".rstrip("."), tensor


def _beside_layers(cache: Any) -> Iterator[tuple[tuple[int, str], Tensor]]:
    """The tensors per layer that a model-specific cache class has in addition to ``layers``, in lists and
    dicts."""
    held = {} if cache is None else {name: value for name, value in vars(cache).items() if name != "layers"}
    for name, value in held.items():
        for index, entry in _entries(value):
            for number, tensor in _entries(entry) if not isinstance(entry, Tensor) else (("", entry),):
                if isinstance(tensor, Tensor) and isinstance(index, int):
                    yield (index, f"{name}.{number}".rstrip(".")), tensor


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)


def _module_tensors(model: nn.Module) -> Iterator[tuple[tuple[int, str], Tensor]]:
    """The tensors that modules hold as plain attributes, by layer and attribute: no weights and no buffers."""
    for path, module in model.named_modules():
        number = re.search(r"\.(\d+)(?:\.|$)", path)
        if number:
            for name, value in vars(module).items():
                if isinstance(value, Tensor):
                    yield (int(number[1]), name), value


def _in_dtype(layer: ObservedLayer, dtype: str) -> ObservedLayer:
    """The model runs in bfloat16, which every kernel supports; tensors of this type take the dtype of the
    weights."""
    kept = (replace(tensor, dtype=dtype) if tensor.dtype == "bfloat16" else tensor for tensor in layer.tensors)
    return replace(layer, tensors=tuple(kept))


def _described(name: str, tensor: Tensor) -> KeptTensor:
    return KeptTensor(name, tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings and log lines of transformers; important problems are raised."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        transformers.logging.set_verbosity(level)
