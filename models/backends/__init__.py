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
