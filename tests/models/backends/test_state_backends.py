"""The backends that call mamba-ssm and causal-conv1d, over stand-ins with the real signatures, against torch's."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

import tests.models.backends.fake_mamba_kernels as fakes
from kvhybrid.models.backends import mamba2_backends, mamba_backends
from kvhybrid.models.backends.torch_mamba import TorchMamba
from kvhybrid.models.backends.torch_mamba2 import TorchMamba2
from tests.models.backends.state_cases import MAMBA, MAMBA2, difference, kept, mamba2_outputs, mamba_outputs

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
"""As a share of the largest element. Measured maxima: Mamba-1 4.5e-7 in either type, as both scan in float32;
Mamba-2 4.3e-7, and 3.3e-3 in bfloat16, in which its kernel gives what it has read; states 4.9e-7."""


pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in fakes.modules().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dt_scale", [1e-3, 1.0, 50.0])
def test_mamba_equals_the_torch_backend(dtype: torch.dtype, dt_scale: float) -> None:
    """Steps of 50 take every decay to zero, so that what was put in front of a prompt has to vanish exactly."""
    found, pages = mamba_outputs(mamba_backends.get("mamba_ssm")(MAMBA), dtype, dt_scale=dt_scale)
    expected, oracle_pages = mamba_outputs(TorchMamba(MAMBA), dtype, dt_scale=dt_scale)
    assert [part.dtype for part in found] == [part.dtype for part in expected]
    assert difference(found, expected) < TOLERANCE[dtype]
    assert difference(kept(pages), kept(oracle_pages)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dt_scale", [1e-3, 1.0, 50.0])
def test_mamba2_equals_the_torch_backend(dtype: torch.dtype, dt_scale: float) -> None:
    found, pages = mamba2_outputs(mamba2_backends.get("mamba_ssm")(MAMBA2), dtype, dt_scale=dt_scale)
    expected, oracle_pages = mamba2_outputs(TorchMamba2(MAMBA2), dtype, dt_scale=dt_scale)
    assert [part.dtype for part in found] == [part.dtype for part in expected]
    assert difference(found, expected) < TOLERANCE[dtype]
    assert difference(kept(pages), kept(oracle_pages)) < TOLERANCE[dtype]


def test_the_kernel_sees_that_a_mamba2_head_has_one_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    """By strides of 0 in A, dt and the bias of dt; it then loads one number a head instead of a matrix."""
    strides = []

    def spy(state, x, dt, A, B, C, D, dt_bias, state_batch_indices):
        strides.append((A.stride(-1), A.stride(-2), dt.stride(-1), dt_bias.stride(-1)))
        return fakes.selective_state_update(
            state, x, dt, A, B, C, D=D, dt_bias=dt_bias, state_batch_indices=state_batch_indices
        )

    name = "mamba_ssm.ops.triton.selective_state_update"
    monkeypatch.setattr(sys.modules[name], "selective_state_update", spy)
    mamba2_outputs(mamba2_backends.get("mamba_ssm")(MAMBA2), torch.float32)
    assert set(strides) == {(0, 0, 0, 0)}


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({"channels": 12}, "12 channels, no multiple of 8"),
        ({"conv_width": 5}, "a convolution over 5 tokens, not 2 to 4"),
        ({"state_size": 300}, "a state of 300, more than 256"),
    ],
)
def test_mamba_layer_that_the_kernels_cannot_do_is_refused(change: dict[str, int], lacking: str) -> None:
    with pytest.raises(ValueError, match=rf"layers\.0 needs {lacking}, which mamba backend mamba_ssm cannot do"):
        mamba_backends.get("mamba_ssm")(replace(MAMBA, **change))


def test_mamba2_layer_that_the_kernels_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layers\.0 needs 62 channels.*, which Mamba-2 backend mamba_ssm"):
        mamba2_backends.get("mamba_ssm")(replace(MAMBA2, head_size=5, state_size=8))


def test_older_mamba_ssm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None):
        raise AssertionError("never runs")

    name = "mamba_ssm.ops.triton.selective_state_update"
    monkeypatch.setattr(sys.modules[name], "selective_state_update", selective_state_update)
    with pytest.raises(ValueError, match=r"another version of mamba-ssm: .* takes no state_batch_indices"):
        mamba_backends.get("mamba_ssm")(MAMBA)
