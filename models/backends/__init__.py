"""Kernel backends: one per file, imported on first use."""

from kvhybrid.models.registry import LazyRegistry

attention_backends = LazyRegistry(
    "attention backend",
    "kvhybrid.attention_backends",
    {
        "auto": "kvhybrid.models.backends.auto:AutoAttention",
        "flash_attention2": "kvhybrid.models.backends.flash_attention2:FlashAttention2",
        "flash_attention3": "kvhybrid.models.backends.flash_attention3:FlashAttention3",
        "flash_attention4": "kvhybrid.models.backends.flash_attention4:FlashAttention4",
        "torch": "kvhybrid.models.backends.torch_attention:TorchAttention",
        "torch_varlen": "kvhybrid.models.backends.torch_varlen:TorchVarlen",
    },
)
gated_delta_backends = LazyRegistry(
    "gated delta backend",
    "kvhybrid.gated_delta_backends",
    {"torch": "kvhybrid.models.backends.torch_gated_delta:TorchGatedDelta"},
)
cross_backends = LazyRegistry(
    "cross-attention backend",
    "kvhybrid.cross_backends",
    {"torch": "kvhybrid.models.backends.torch_cross:TorchCross"},
)
mamba_backends = LazyRegistry(
    "mamba backend",
    "kvhybrid.mamba_backends",
    {
        "auto": "kvhybrid.models.backends.auto:AutoMamba",
        "mamba_ssm": "kvhybrid.models.backends.mamba_ssm:MambaSsm",
        "torch": "kvhybrid.models.backends.torch_mamba:TorchMamba",
    },
)
mamba2_backends = LazyRegistry(
    "Mamba-2 backend",
    "kvhybrid.mamba2_backends",
    {
        "auto": "kvhybrid.models.backends.auto:AutoMamba2",
        "mamba_ssm": "kvhybrid.models.backends.mamba2_ssm:Mamba2Ssm",
        "torch": "kvhybrid.models.backends.torch_mamba2:TorchMamba2",
    },
)
