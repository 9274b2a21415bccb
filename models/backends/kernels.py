"""Import of kernels from other packages, with one-line errors."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any


class MissingKernelsError(ValueError):
    """A backend's package is not installed, does not load on this machine, or has the wrong version."""


def load_kernels(backend: str, module: str, names: tuple[str, ...], *, package: str, install: str) -> list[Any]:
    """The functions ``names`` of ``module``, for ``backend``, e.g. "attention backend flash_attention2".

    Raises `MissingKernelsError`, which says why ``package`` does not load or how to install it (``install`` is the
    command or its source).
    """
    try:
        found = import_module(module)
        return [getattr(found, name) for name in names]
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise MissingKernelsError(f"{backend} needs {package}, which is not installed: {install}") from error
        raise MissingKernelsError(f"{backend}: {package} does not load: {_first_line(error)}") from error
    except (ImportError, AttributeError, OSError) as error:
        raise MissingKernelsError(f"{backend}: {package} does not load: {_first_line(error)}") from error


def require_parameters(backend: str, kernel: Callable[..., Any], names: tuple[str, ...], *, package: str) -> None:
    """Raise `MissingKernelsError` if ``kernel``, in this version of ``package``, lacks one of these parameters."""
    lacking = [name for name in names if name not in signature(kernel).parameters]
    if lacking:
        raise MissingKernelsError(
            f"{backend} needs another version of {package}: {kernel.__name__} takes no {', '.join(lacking)}"
        )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
