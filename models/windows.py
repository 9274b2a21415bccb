"""Change the windows of a model: a smaller window needs less memory but makes the predictions worse."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.shared_attention import SharedAttention


def change_windows(model: nn.Module, window: int | None = None, sinks: int = 0) -> None:
    """Let every window layer of ``model`` attend to the last ``window`` tokens, the query included (None: its own
    window), and to the first ``sinks`` tokens at their original positions.

    Call it before the cache is planned. Raises ValueError for a model without window layers, and if a layer's
    backend does not support sinks.
    """
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, (Attention, SharedAttention)) and layer.need.visibility.window is not None
    ]
    if not layers:
        raise ValueError("the model has no window layers")
    for layer in layers:
        seen = layer.need.visibility
        layer.need = replace(layer.need, visibility=replace(seen, window=window or seen.window, sinks=sinks))
        layer.backend = type(layer.backend)(layer.need)
