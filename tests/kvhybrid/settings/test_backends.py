"""``kvhybrid run backends.attention=… backends.mamba=…``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from inspect import signature

import pytest

from kvhybrid.engine.quality import QualitySettings
from kvhybrid.errors import InputError
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.mamba import MambaMixer
from kvhybrid.sessions.run import build_engine
from kvhybrid.sessions.run_settings import PoolSettings, RunSettings
from kvhybrid.settings.backends import BackendSettings
from kvhybrid.settings.model import Gemma3Settings, JambaSettings, ModelSettings
from kvhybrid.workloads.random import Random


def settings(model: ModelSettings, block_size: int = 16, **backends: str) -> RunSettings:
    return RunSettings(
        model=model,
        workload=Random(),
        pool=PoolSettings(block_size=block_size, num_blocks=None, memory="64MiB"),
        quality=QualitySettings(bytes=0),
        backends=BackendSettings(**backends),
    )


def test_layers_run_on_the_backends_that_the_settings_name() -> None:
    model = build_engine(settings(JambaSettings(), attention="auto", mamba="auto")).model
    names = {
        kind: {layer.backend.name for layer in model.modules() if isinstance(layer, kind)}
        for kind in (Attention, MambaMixer)
    }
    assert names == {Attention: {"auto"}, MambaMixer: {"auto"}}


def test_torch_is_what_runs_where_nothing_is_named() -> None:
    model = build_engine(settings(JambaSettings())).model
    assert {layer.backend.name for layer in model.modules() if isinstance(layer, Attention)} == {"torch"}


@pytest.mark.parametrize(
    ("backends", "message"),
    [
        ({"attention": "flash"}, "unknown attention backend 'flash'; accepted: auto, flash_attention2, .*torch"),
        ({"mamba": "triton"}, "unknown mamba backend 'triton'; accepted: auto, mamba_ssm, torch"),
    ],
)
def test_unknown_name_is_refused_with_the_known_ones(backends: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_engine(settings(JambaSettings(), **backends))


def test_package_that_is_missing_is_an_error_of_one_line() -> None:
    if find_spec("flash_attn") is not None:
        pytest.skip("flash_attn is installed here")
    with pytest.raises(InputError, match=r"flash_attention2 needs flash-attn, .*: pip install 'kvhybrid\[gpu\]'"):
        build_engine(settings(Gemma3Settings(), attention="flash_attention2"))


def test_kernels_for_cuda_are_refused_on_the_cpu() -> None:
    """Those that torch carries are always there."""
    if "block_table" not in signature(pytest.importorskip("torch.nn.attention.varlen").varlen_attn).parameters:
        pytest.skip("this torch has no paged varlen_attn")
    with pytest.raises(InputError, match="block_size must be a positive multiple of 256"):
        build_engine(settings(Gemma3Settings(), attention="torch_varlen"))
    with pytest.raises(InputError, match=r"cannot keep 'k' as torch\.float32; accepted: torch\.bfloat16"):
        build_engine(settings(Gemma3Settings(), 256, attention="torch_varlen"))
    with pytest.raises(InputError, match="torch_varlen runs on cuda, its pages lie on cpu"):
        build_engine(settings(Gemma3Settings(dtype="bfloat16"), 256, attention="torch_varlen"))


def test_choosing_torch_imports_no_kernels() -> None:
    build_engine(settings(Gemma3Settings()))
    assert "flash_attn" not in sys.modules
    assert "mamba_ssm" not in sys.modules
