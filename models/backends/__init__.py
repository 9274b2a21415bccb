"""Kernel backends: one per file, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhybrid.plugins import Registry

if TYPE_CHECKING:
    from kvhybrid.models.backends.base import AttentionBackend, MambaBackend
    from kvhybrid.models.backends.cross import CrossBackend
    from kvhybrid.models.backends.gated_delta import GatedDeltaBackend
    from kvhybrid.models.backends.mamba2 import Mamba2Backend

attention_backends: Registry[AttentionBackend] = Registry(
    "attention backend",
    "kvhybrid.attention_backends",
    "kvhybrid.models.backends.base:AttentionBackend",
    {
        "auto": "kvhybrid.models.backends.auto:AutoAttention",
        "flash_attention2": "kvhybrid.models.backends.flash_attention2:FlashAttention2",
        "flash_attention3": "kvhybrid.models.backends.flash_attention3:FlashAttention3",
        "flash_attention4": "kvhybrid.models.backends.flash_attention4:FlashAttention4",
        "torch": "kvhybrid.models.backends.torch_attention:TorchAttention",
        "torch_varlen": "kvhybrid.models.backends.torch_varlen:TorchVarlen",
    },
)
gated_delta_backends: Registry[GatedDeltaBackend] = Registry(
    "gated delta backend",
    "kvhybrid.gated_delta_backends",
    "kvhybrid.models.backends.gated_delta:GatedDeltaBackend",
    {"torch": "kvhybrid.models.backends.torch_gated_delta:TorchGatedDelta"},
)
cross_backends: Registry[CrossBackend] = Registry(
    "cross-attention backend",
    "kvhybrid.cross_backends",
    "kvhybrid.models.backends.cross:CrossBackend",
    {"torch": "kvhybrid.models.backends.torch_cross:TorchCross"},
)
mamba_backends: Registry[MambaBackend] = Registry(
    "mamba backend",
    "kvhybrid.mamba_backends",
    "kvhybrid.models.backends.base:MambaBackend",
    {
        "auto": "kvhybrid.models.backends.auto:AutoMamba",
        "mamba_ssm": "kvhybrid.models.backends.mamba_ssm:MambaSsm",
        "torch": "kvhybrid.models.backends.torch_mamba:TorchMamba",
    },
)
mamba2_backends: Registry[Mamba2Backend] = Registry(
    "Mamba-2 backend",
    "kvhybrid.mamba2_backends",
    "kvhybrid.models.backends.mamba2:Mamba2Backend",
    {
        "auto": "kvhybrid.models.backends.auto:AutoMamba2",
        "mamba_ssm": "kvhybrid.models.backends.mamba2_ssm:Mamba2Ssm",
        "torch": "kvhybrid.models.backends.torch_mamba2:TorchMamba2",
    },
)
