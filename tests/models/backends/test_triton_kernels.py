"""The real Triton kernels of mamba-ssm, interpreted on the CPU, called by the backends.

They come from the source distribution and are not built; triton and einops go beside it on PYTHONPATH, in folders
of their own, so that nothing in the environment changes:

    pip download --no-deps --no-binary :all: --no-build-isolation mamba-ssm && tar xf mamba_ssm-*.tar.gz
    pip install --no-deps --target kernels triton==3.7.0 einops
    PYTHONPATH=mamba_ssm-2.3.2.post1:kernels pytest tests/models/backends/test_triton_kernels.py

``MAMBA_SKIP_CUDA_BUILD=TRUE`` keeps the first line from asking for a CUDA compiler. About a minute on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch

import tests.models.backends.fake_mamba_kernels as fakes
from kvhybrid.models.backends import mamba2_backends, mamba_backends
from kvhybrid.models.backends.torch_mamba import TorchMamba
from kvhybrid.models.backends.torch_mamba2 import TorchMamba2
from tests.models.backends.state_cases import MAMBA, MAMBA2, difference, kept, mamba2_outputs, mamba_outputs

OPS = "mamba_ssm.ops.triton"
MISSING = [name for name in ("triton", "einops", "mamba_ssm") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not on PYTHONPATH: {', '.join(MISSING)}; see {__name__}'s docstring"
)


@pytest.fixture(scope="module")
def kernels() -> Iterator[dict[str, ModuleType]]:
    """The real modules where they are Triton; stand-ins where they are CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(torch.cuda, "device", lambda index: nullcontext())
        spec = find_spec("mamba_ssm")
        assert spec is not None
        # The package's own __init__ imports what is built with CUDA.
        package = ModuleType("mamba_ssm")
        package.__path__ = list(spec.submodule_search_locations or ())
        patch.setitem(sys.modules, "mamba_ssm", package)
        for name, module in fakes.modules().items():
            if not name.startswith(OPS):
                patch.setitem(sys.modules, name, module)
        found = {name: import_module(f"{OPS}.{name}") for name in ("selective_state_update", "ssd_combined")}
        for module in list(sys.modules.values()):
            if module.__name__.startswith(f"{OPS}.ssd_"):
                tune_nothing(module)
        yield found
        for name in [name for name in sys.modules if name.startswith("mamba_ssm.")]:
            del sys.modules[name]


def tune_nothing(module: ModuleType) -> None:
    """An interpreted kernel has no clock to be tuned by: leave one configuration to each."""
    for kernel in vars(module).values():
        if hasattr(kernel, "configs") and hasattr(kernel, "fn"):
            kernel.configs = kernel.configs[:1]


def test_mamba_decodes_through_the_real_kernel(kernels: dict[str, ModuleType]) -> None:
    backend = mamba_backends.get("mamba_ssm")(MAMBA)
    assert backend._update is kernels["selective_state_update"].selective_state_update
    found, pages = mamba_outputs(backend, torch.float32)
    expected, oracle_pages = mamba_outputs(TorchMamba(MAMBA), torch.float32)
    assert difference(found, expected) < 2e-6  # measured with mamba-ssm 2.3.2: 1.6e-7
    assert difference(kept(pages), kept(oracle_pages)) < 2e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float16, 2e-3)], ids=str)
def test_mamba2_runs_through_the_real_kernels(
    kernels: dict[str, ModuleType], dtype: torch.dtype, tolerance: float
) -> None:
    """Measured with mamba-ssm 2.3.2: float32 9.3e-7, float16 4.7e-4; states 5.0e-7 and 2.5e-4. Bfloat16 is for a
    GPU: the interpreter multiplies its bits as if they were integers."""
    backend = mamba2_backends.get("mamba_ssm")(MAMBA2)
    assert backend._update is kernels["selective_state_update"].selective_state_update
    assert backend._scan is kernels["ssd_combined"].mamba_chunk_scan_combined
    found, pages = mamba2_outputs(backend, dtype)
    expected, oracle_pages = mamba2_outputs(TorchMamba2(MAMBA2), dtype)
    assert difference(found, expected) < tolerance
    assert difference(kept(pages), kept(oracle_pages)) < tolerance


def test_the_real_wrapper_cannot_do_without_a_bias_of_dt(kernels: dict[str, ModuleType]) -> None:
    """Why the backends pass zeros. Once this fails, they no longer have to."""
    update: Any = kernels["selective_state_update"].selective_state_update
    state, row, column = torch.zeros(1, 8, 4), torch.zeros(1, 8), torch.zeros(1, 4)
    with pytest.raises(TypeError):
        update(state, row, row, torch.zeros(8, 4), column, column)
