"""The public interface: what ``from kvhybrid import …`` promises."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import kvhybrid

SOURCE = ast.parse(Path(kvhybrid.__file__).read_text(encoding="utf-8"))
TYPED_HOMES = {
    alias.name: node.module or ""
    for statement in SOURCE.body
    if isinstance(statement, ast.If)
    for node in ast.walk(statement)
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Where type checkers find each name."""

PUBLIC = [
    "AttentionSpec",
    "CacheConfigError",
    "CachePlan",
    "CacheStats",
    "CapacityError",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "Engine",
    "FullAttentionSpec",
    "GroupStats",
    "InputError",
    "KVCacheConfig",
    "KVCacheGroup",
    "KVCacheManager",
    "KVCacheSpec",
    "LoRA",
    "MLAAttentionSpec",
    "MambaSpec",
    "MediaItem",
    "PlanningError",
    "PrivateStateSpec",
    "Request",
    "RequestStatus",
    "SamplingParams",
    "Scheduler",
    "SinkWindowSpec",
    "SlidingWindowSpec",
    "SuffixSpec",
    "is_compiled",
    "plan_cache",
    "register_spec",
]


def test_no_name_is_lost() -> None:
    """Removing one breaks users: deprecate it first."""
    assert sorted(kvhybrid.__all__) == sorted(PUBLIC)


@pytest.mark.parametrize("name", sorted({*PUBLIC} - {"is_compiled"}))
def test_a_name_is_what_type_checkers_see(name: str) -> None:
    assert getattr(kvhybrid, name) is getattr(import_module(TYPED_HOMES[name]), name)
    assert name in dir(kvhybrid)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kvhybrid' has no attribute 'Engin'"):
        kvhybrid.Engin  # noqa: B018


def python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return result.stdout.strip()


def test_importing_kvhybrid_takes_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'wandb', 'hydra', 'numpy'}"
    assert python(f"import sys, kvhybrid; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_only_what_runs_a_model_imports_torch() -> None:
    light = sorted({*PUBLIC} - {"Engine", "SamplingParams"})
    assert python(f"import sys; from kvhybrid import {', '.join(light)}; print('torch' in sys.modules)") == "False"
