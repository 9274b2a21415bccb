"""The stand-ins of these tests have the signatures of the real kernels, which are read from source.

No GPU is needed, and nothing is built: an unpacked source distribution on PYTHONPATH will do, e.g.

    pip download --no-deps --no-binary :all: --no-build-isolation flash-attn mamba-ssm causal-conv1d
    PYTHONPATH=flash_attn-2.8.3.post2:mamba_ssm-2.3.2.post1:causal_conv1d-1.7.0 \\
        pytest tests/models/backends/test_kernel_signatures.py -rs

FLASH_ATTENTION_SKIP_CUDA_BUILD, MAMBA_SKIP_CUDA_BUILD and CAUSAL_CONV1D_SKIP_CUDA_BUILD, each TRUE, keep pip from
asking for a CUDA compiler.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import tests.models.backends.fake_flash_attention as flash
import tests.models.backends.fake_mamba_kernels as mamba

SEEN = flash.Seen()
INTERFACE, CONVOLUTION = "flash_attn_interface.py", "causal_conv1d_interface.py"
KERNELS: list[tuple[str, str, Callable[..., object]]] = [
    ("flash_attn", INTERFACE, flash.flash_attention2(SEEN).flash_attn_varlen_func),
    ("flash_attn", INTERFACE, flash.flash_attention2(SEEN).flash_attn_with_kvcache),
    ("flash_attn_interface", "", flash.flash_attention3(SEEN).flash_attn_with_kvcache),
    ("flash_attn", "cute/interface.py", flash.flash_attention4(SEEN).flash_attn_varlen_func),
    ("torch", "nn/attention/varlen.py", flash.torch_varlen(SEEN).varlen_attn),
    ("causal_conv1d", CONVOLUTION, mamba.causal_conv1d().causal_conv1d_fn),
    ("causal_conv1d", CONVOLUTION, mamba.causal_conv1d().causal_conv1d_update),
    ("mamba_ssm", "ops/triton/selective_state_update.py", mamba.selective_state_update),
    ("mamba_ssm", "ops/selective_scan_interface.py", mamba.selective_scan_fn),
    ("mamba_ssm", "ops/triton/ssd_combined.py", mamba.mamba_chunk_scan_combined),
]


@pytest.mark.parametrize(
    ("package", "file", "fake"), KERNELS, ids=[f"{package}-{fake.__name__}" for package, _, fake in KERNELS]
)
def test_stand_in_has_the_signature_of_the_real_kernel(
    package: str, file: str, fake: Callable[..., object]
) -> None:
    path = source(package, file)
    if path is None:
        pytest.skip(f"no {package}/{file} on PYTHONPATH")
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    real = next(node for node in functions if node.name == fake.__name__)
    names = [argument.arg for argument in (*real.args.args, *real.args.kwonlyargs)]
    if "cute" in file and "return_lse" not in names:
        pytest.skip("this is the early flash_attn.cute that the package flash-attn carries")
    assert list(inspect.signature(fake).parameters) == names


def source(package: str, file: str) -> Path | None:
    """Where ``file`` of a package lies, or the module itself where no file is named; nothing is imported."""
    spec = find_spec(package)
    if spec is None:
        return None
    roots = [Path(root) for root in spec.submodule_search_locations or ()]
    paths = [root / file for root in roots] if file else [Path(spec.origin or "")]
    return next((path for path in paths if path.is_file()), None)
