"""Kernel backends: one a file, imported only when chosen."""

from kvhybrid.models.registry import LazyRegistry

attention_backends = LazyRegistry(
    "attention backend",
    "kvhybrid.attention_backends",
    {"torch": "kvhybrid.models.backends.torch_attention:TorchAttention"},
)
mamba_backends = LazyRegistry(
    "mamba backend",
    "kvhybrid.mamba_backends",
    {"torch": "kvhybrid.models.backends.torch_mamba:TorchMamba"},
)
mamba2_backends = LazyRegistry(
    "Mamba-2 backend",
    "kvhybrid.mamba2_backends",
    {"torch": "kvhybrid.models.backends.torch_mamba2:TorchMamba2"},
)
