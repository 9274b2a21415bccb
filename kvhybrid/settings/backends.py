"""The part of the schema that selects kernels for a model's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvhybrid.models.backends import attention_backends, mamba2_backends, mamba_backends
from kvhybrid.plugins import PluginError, Registry

if TYPE_CHECKING:
    from kvhybrid.models.base import BackendChoice


@dataclass(kw_only=True)
class BackendSettings:
    """Kernel backends by registered name; ``auto`` picks the first that is usable."""

    attention: str = "torch"
    mamba: str = "torch"

    def choice(self) -> BackendChoice:
        """The choice in the form that models take. Raises ValueError, with the key, for an unknown name."""
        from kvhybrid.models.base import BackendChoice

        _check("backends.attention", self.attention, (attention_backends,))
        _check("backends.mamba", self.mamba, (mamba_backends, mamba2_backends))
        return BackendChoice(attention=self.attention, mamba=self.mamba)


def _check(key: str, name: str, registries: tuple[Registry[Any], ...]) -> None:
    """Raise ValueError if none of ``registries`` has ``name``. Registered backends are not imported."""
    if any(name in registry for registry in registries):
        return
    errors = []
    for registry in registries:
        try:
            registry.find(name)
        except PluginError as error:
            errors.append(error)
    if len(errors) == len(registries):
        raise ValueError(f"{key}: {errors[0]}")
