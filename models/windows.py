"""Other windows than a model was trained with: less is kept, and the predictions get worse."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.shared_attention import SharedAttention


def change_windows(model: nn.Module, window: int | None = None, sinks: int = 0) -> None:
    """Let every layer of ``model`` that has a window see the latest ``window`` tokens, itself included (its own
    window where not given), and the first ``sinks`` tokens, whose positions stay what they are.

    Call it before the cache is planned. Raises ValueError for a model without such layers, and where a layer's
    kernels cannot do it.
    """
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, (Attention, SharedAttention)) and layer.need.visibility.window is not None
    ]
    if not layers:
        raise ValueError("the model has no layers with a window that could be changed")
    for layer in layers:
        seen = layer.need.visibility
        layer.need = replace(layer.need, visibility=replace(seen, window=window or seen.window, sinks=sinks))
        layer.backend = type(layer.backend)(layer.need)
