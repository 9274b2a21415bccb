"""Alternating updates (AltUp, arXiv:2301.13310): a residual stream several times as wide as the layers.

There are A parallel streams of the model's width. A layer computes one of them, the active one; the others are
updated with coefficients from a router. Between the first and the last layer, hidden states are ``x_ATM``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kvhybrid.models.layers.norm import WideRMSNorm

LEAST_SQUARE = 1e-5
"""Lower bound of a stream's mean square, so that a zero stream is not scaled up."""


class AltUp(nn.Module):
    """One layer's mixing of the streams: predicts all of them before the layer and corrects them afterwards."""

    def __init__(self, width: int, streams: int, active: int, eps: float) -> None:
        super().__init__()
        self.active = active
        self.router_norm = WideRMSNorm(width, eps)
        self.modality_router = nn.Linear(width, streams, bias=False)
        self.prediction_coefs = nn.Linear(streams, streams * streams, bias=False)
        self.correction_coefs = nn.Linear(streams, streams, bias=False)
        self.correct_output_scale = nn.Parameter(torch.empty(width))

    def fill(self, generator: torch.Generator) -> None:
        self.correct_output_scale.fill_(1.0)

    def predict(self, x_ATM: Tensor) -> Tensor:
        """Every stream plus a per-token mixture of all streams."""
        streams, tokens, _ = x_ATM.shape
        mix_TAA = self.prediction_coefs(self._route(x_ATM[self.active])).view(tokens, streams, streams)
        return x_ATM + torch.einsum("tij,jtm->itm", mix_TAA, x_ATM)

    def correct(self, predicted_ATM: Tensor, found_TM: Tensor) -> Tensor:
        """Every predicted stream plus its share of the active one's error. ``found_TM`` is the layer's output."""
        error_TM = found_TM - predicted_ATM[self.active]
        share_TA: Tensor = self.correction_coefs(self._route(found_TM)) + 1.0
        return predicted_ATM + error_TM * share_TA.transpose(0, 1)[:, :, None]

    def _route(self, x_TM: Tensor) -> Tensor:
        routed_TA = self.modality_router(self.router_norm(x_TM) / x_TM.shape[-1])
        return torch.tanh(routed_TA.float()).to(x_TM.dtype)


class Streams(nn.Module):
    """Expands the embedding into streams, and merges the streams at the end."""

    def __init__(self, width: int, streams: int) -> None:
        super().__init__()
        self.altup_projections = _projections(width, streams)
        self.altup_unembed_projections = _projections(width, streams)

    def spread(self, x_TM: Tensor) -> Tensor:
        """The embedding and projections of it, scaled to the same magnitude: ``x_ATM``."""
        others = [_as_large(project(x_TM), x_TM) for project in self.altup_projections]
        return torch.stack((x_TM, *others))

    def merge(self, x_ATM: Tensor) -> Tensor:
        """The mean of the first stream and projections of the others, scaled to the same magnitude: ``x_TM``."""
        first_TM, *rest = x_ATM
        pairs = zip(self.altup_unembed_projections, rest, strict=True)
        others = [_as_large(project(x_TM), first_TM) for project, x_TM in pairs]
        return torch.stack((first_TM, *others)).mean(0)


def _projections(width: int, streams: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(streams - 1))


def _as_large(x_TM: Tensor, model_TM: Tensor) -> Tensor:
    """``x_TM`` with each token scaled to the magnitude of the same token in ``model_TM``."""
    wanted_T1 = model_TM.square().mean(-1, keepdim=True).sqrt()
    return x_TM * wanted_T1 / x_TM.square().mean(-1, keepdim=True).clamp(min=LEAST_SQUARE).sqrt()
