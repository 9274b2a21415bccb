"""The real kernels on a CUDA device, through the same batches as the stand-ins: ``python -m pytest -m gpu``.

This has not been run yet; see runs/gpu_check/README.md.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvhybrid.models.backends import attention_backends, mamba2_backends, mamba_backends
from kvhybrid.models.backends.kernels import MissingKernelsError
from kvhybrid.models.backends.torch_attention import TorchAttention
from kvhybrid.models.backends.torch_mamba import TorchMamba
from kvhybrid.models.backends.torch_mamba2 import TorchMamba2
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.plugins import Registry
from tests.models.backends.paged_cases import BATCHES, VISIBILITIES, need, scene
from tests.models.backends.state_cases import MAMBA, MAMBA2, difference, kept, mamba2_outputs, mamba_outputs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
BLOCK_SIZES = {"flash_attention2": 256, "flash_attention3": 16, "flash_attention4": 48, "torch_varlen": 256}


def made(registry: Registry[Any], name: str, what: Any) -> Any:
    try:
        return registry.get(name)(what)
    except MissingKernelsError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("visibility", VISIBILITIES)
@pytest.mark.parametrize("name", BLOCK_SIZES)
def test_attention_equals_the_torch_backend(name: str, visibility: str, batch: str) -> None:
    what = need(VISIBILITIES[visibility])
    at = scene(what.visibility, *BATCHES[batch], BLOCK_SIZES[name], "cuda")
    backend, oracle = made(attention_backends, name, what), TorchAttention(what)
    unusable = backend.unusable(what, at.halves)
    if unusable is not None:
        pytest.skip(f"{name} {unusable}")
    found = backend.attend(at.q, at.k, at.v, at.halves, backend.plan(at.batch, at.group))
    expected = oracle.attend(at.q.float(), at.k.float(), at.v.float(), at.floats, oracle.plan(at.batch, at.group))
    assert (found - expected).abs().max() < 5e-3


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", BLOCK_SIZES)
def test_sink_logits_equal_the_torch_backend(name: str, batch: str) -> None:
    what = need(Visibility(window=40), sink_logits=True)
    at = scene(what.visibility, *BATCHES[batch], BLOCK_SIZES[name], "cuda")
    backend, oracle = made(attention_backends, name, what), TorchAttention(what)
    unusable = backend.unusable(what, at.halves)
    if unusable is not None:
        pytest.skip(f"{name} {unusable}")
    sinks = torch.tensor([-3.0, 0.5, 2.0, -20.0], device="cuda")
    found = backend.attend_with_sinks(at.q, at.k, at.v, sinks, at.halves, backend.plan(at.batch, at.group))
    expected = oracle.attend_with_sinks(
        at.q.float(), at.k.float(), at.v.float(), sinks, at.floats, oracle.plan(at.batch, at.group)
    )
    assert (found - expected).abs().max() < 5e-3


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str)
@pytest.mark.parametrize("dt_scale", [1e-3, 1.0, 50.0])
def test_mamba_equals_the_torch_backend(dtype: torch.dtype, tolerance: float, dt_scale: float) -> None:
    backend = made(mamba_backends, "mamba_ssm", MAMBA)
    found, pages = mamba_outputs(backend, dtype, "cuda", dt_scale)
    expected, oracle_pages = mamba_outputs(TorchMamba(MAMBA), dtype, "cuda", dt_scale)
    assert difference(found, expected) < tolerance
    assert difference(kept(pages), kept(oracle_pages)) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dt_scale", [1e-3, 1.0, 50.0])
def test_mamba2_equals_the_torch_backend(dtype: torch.dtype, dt_scale: float) -> None:
    """Within 1 %: the kernel multiplies float32 with the 10 bits of TF32."""
    backend = made(mamba2_backends, "mamba_ssm", MAMBA2)
    found, pages = mamba2_outputs(backend, dtype, "cuda", dt_scale)
    expected, oracle_pages = mamba2_outputs(TorchMamba2(MAMBA2), dtype, "cuda", dt_scale)
    assert difference(found, expected) < 1e-2
    assert difference(kept(pages), kept(oracle_pages)) < 1e-2
