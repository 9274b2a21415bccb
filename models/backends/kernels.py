"""Kernels of other packages: imported when a backend is chosen, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any


class MissingKernelsError(ValueError):
    """A backend's package is not installed, does not load on this machine, or is of another version."""


def load_kernels(backend: str, module: str, names: tuple[str, ...], *, package: str, install: str) -> list[Any]:
    """The functions ``names`` of ``module``, for ``backend``, e.g. "attention backend flash_attention2".

    Raises `MissingKernelsError` that says how to get ``package`` (``install`` is the command, or where it comes
    from), or why it does not load.
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
    """Raises `MissingKernelsError` where ``kernel`` is from a version of ``package`` that lacks a parameter."""
    lacking = [name for name in names if name not in signature(kernel).parameters]
    if lacking:
        raise MissingKernelsError(
            f"{backend} needs another version of {package}: {kernel.__name__} takes no {', '.join(lacking)}"
        )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
