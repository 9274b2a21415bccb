"""Which backend a layer gets: refusals in one line that names both, and what ``auto`` takes."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch

import tests.models.backends.fake_flash_attention as flash
import tests.models.backends.fake_mamba_kernels as mamba
from kvhybrid.models.backends import attention_backends, auto, mamba2_backends, mamba_backends
from kvhybrid.models.backends.base import AttentionNeed, Backend
from kvhybrid.models.backends.kernels import MissingKernelsError, load_kernels
from kvhybrid.models.backends.mamba2 import Mamba2Need
from kvhybrid.models.backends.paged import PagedAttention
from kvhybrid.models.backends.torch_attention import TorchAttention
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import BackendChoice, LayerCache
from kvhybrid.models.loading import model_from_config
from tests.models.paged_driver import PagedDriver
from tests.models.tiny_models import CONFIGS, random_prompt

NEED = AttentionNeed("layers.7", 4, 2, 16, 0.4, Visibility())
MAMBA2 = Mamba2Need("layers.0", num_heads=6, head_size=8, num_groups=2, state_size=4, conv_width=4)
PAGED = ("flash_attention2", "flash_attention3", "flash_attention4", "torch_varlen")


def cache(block_size: int = 256, dtype: torch.dtype = torch.bfloat16, padding: int = 0) -> LayerCache:
    part = block_size * 2 * 16
    raw = torch.zeros(3, 2 * part + padding, dtype=dtype)
    return {
        name: raw[:, start : start + part].unflatten(1, (block_size, 2, 16))
        for name, start in (("k", 0), ("v", part))
    }


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the paged backends run without CUDA; the kernels are stand-ins."""
    monkeypatch.setattr(PagedAttention, "devices", None)


@pytest.fixture(autouse=True)
def _said_nothing_yet() -> Iterator[None]:
    auto.say_once.cache_clear()
    yield
    auto.say_once.cache_clear()


@pytest.mark.parametrize("name", PAGED)
@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({"visibility": Visibility(window=4, sinks=1)}, "sinks"),
        ({"head_size": 12}, r"heads of 12, no multiple of (8|16)"),
        ({"head_size": 512}, "heads of 512, more than 256"),
    ],
)
def test_layer_that_a_kernel_cannot_do_is_refused_with_both_names(
    name: str, change: dict[str, Any], lacking: str
) -> None:
    with pytest.raises(ValueError, match=rf"layer layers\.7 needs {lacking}, which attention backend {name} can"):
        attention_backends.get(name)(replace(NEED, **change))


@pytest.mark.parametrize(
    ("name", "pages", "reason"),
    [
        ("flash_attention2", {"block_size": 16}, "needs blocks of a multiple of 256 tokens, found 16"),
        ("torch_varlen", {"block_size": 384}, "needs blocks of a multiple of 256 tokens, found 384"),
        ("flash_attention3", {"dtype": torch.float32}, r"cannot keep 'k' as torch.float32; accepted: torch.bf"),
        ("flash_attention4", {"padding": 4}, "needs 'k' to start at a multiple of 16 bytes in .*32776"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("anywhere")
def test_pages_that_a_kernel_cannot_use_are_refused(name: str, pages: dict[str, Any], reason: str) -> None:
    assert attention_backends.get(name).unusable(NEED, cache()) is None
    found = attention_backends.get(name).unusable(NEED, cache(**pages))
    assert found is not None
    assert re.match(reason, found), found


@pytest.mark.usefixtures("anywhere")
def test_chunks_that_start_inside_a_block_are_refused() -> None:
    need = replace(NEED, visibility=Visibility(chunk=8192))
    backend = attention_backends.get("flash_attention3")
    assert backend.unusable(need, cache(512)) is None
    assert backend.unusable(need, cache(48)) == (
        "needs chunks that start a block: 8192 tokens are not a multiple of blocks of 48"
    )


@pytest.mark.parametrize("name", PAGED)
def test_pages_on_the_cpu_are_refused(name: str) -> None:
    assert attention_backends.get(name).unusable(NEED, cache()) == "runs on cuda, its pages lie on cpu"


def test_a_card_of_another_generation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Page:
        """As much of a CUDA tensor as is asked for."""

        dtype, shape, device = torch.bfloat16, (3, 256, 2, 16), torch.device("cuda")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    backend = attention_backends.get("flash_attention3")
    found = backend.unusable(NEED, {"k": Page(), "v": Page()})  # type: ignore[dict-item]
    assert found == "runs on CUDA compute capability 9.x, found 8.0"


@pytest.mark.parametrize(
    ("registry", "name", "need", "line"),
    [
        (attention_backends, "flash_attention2", NEED, r"needs flash-attn, .*: pip install 'kvhybrid\[gpu\]'"),
        (attention_backends, "flash_attention3", NEED, "needs flash_attn_interface, .*: build the folder hopper"),
        (attention_backends, "flash_attention4", NEED, r"needs flash-attn-4, .*'kvhybrid\[gpu4\]'"),
        (mamba2_backends, "mamba_ssm", MAMBA2, r"needs causal-conv1d, .*: pip install 'kvhybrid\[gpu\]'"),
    ],
    ids=lambda value: value if isinstance(value, str) and "(" not in value else "",
)
def test_package_that_is_not_installed_is_named(registry: Any, name: str, need: Any, line: str) -> None:
    package = {"flash_attention3": "flash_attn_interface", "mamba_ssm": "causal_conv1d"}.get(name, "flash_attn")
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed here")
    with pytest.raises(MissingKernelsError, match=rf"{registry.noun} {name} {line}") as error:
        registry.get(name)(need)
    assert "\n" not in str(error.value)


def test_package_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "broken_kernels.py").write_text("import a_library_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingKernelsError, match="does not load: No module named 'a_library_that_is_missing'"):
        load_kernels("attention backend x", "broken_kernels", ("f",), package="broken", install="")


def test_early_flash_attention4_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package flash-attn carries a flash_attn.cute of its own."""

    def flash_attn_varlen_func(q, k, v, cu_seqlens_q=None, seqused_k=None, page_table=None):  # type: ignore[no-untyped-def]  # fmt: skip
        raise AssertionError("never runs")

    monkeypatch.setitem(sys.modules, "flash_attn.cute", flash.module("flash_attn.cute", flash_attn_varlen_func))
    with pytest.raises(MissingKernelsError, match=r"another version of flash-attn-4: .* no max_seqlen_k"):
        attention_backends.get("flash_attention4")(NEED)


def chosen(need: AttentionNeed, pages: LayerCache) -> Backend:
    backend = attention_backends.get("auto")(need)
    backend.check_cache("layers.7", pages)
    found: Backend = backend.chosen
    return found


def install(monkeypatch: pytest.MonkeyPatch, *fakes: Any) -> None:
    for fake in fakes:
        module: ModuleType = fake(flash.Seen())
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("anywhere")
def test_auto_takes_the_fastest_that_is_installed_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flash.flash_attention2, flash.torch_varlen)
    assert chosen(NEED, cache()).name == "flash_attention2"
    assert chosen(NEED, cache(16)).name == "torch", "neither takes pages of 16 tokens"
    install(monkeypatch, flash.flash_attention3)
    assert chosen(NEED, cache(16)).name == "flash_attention3"
    assert chosen(replace(NEED, visibility=Visibility(window=4, sinks=2)), cache()).name == "torch"
    assert chosen(NEED, cache(dtype=torch.float32)).name == "torch"


def test_auto_says_once_why_it_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=auto.__name__)
    for layer in range(3):
        assert isinstance(chosen(replace(NEED, layer=f"layers.{layer}"), cache()), TorchAttention)
    assert [record.getMessage() for record in caplog.records] == [
        *(
            f"attention backend auto: not {name}: runs on cuda, its pages lie on cpu"
            for name in auto.ATTENTION[:-1]
        ),
        "attention backend auto: falls back to torch",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


@pytest.mark.usefixtures("anywhere")
def test_auto_names_what_is_not_installed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("flash_attn", "flash_attn_interface", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, package, None)
    chosen(replace(NEED, soft_cap=2.0), cache())
    found = [record.getMessage() for record in caplog.records]
    assert any("not flash_attention2: " in line and "flash-attn" in line for line in found)
    assert "attention backend auto: not torch_varlen: cannot do a soft-cap" in found


def test_auto_passes_on_what_no_backend_can_keep() -> None:
    with pytest.raises(ValueError, match=r"layers\.7: attention backend torch cannot keep 'k' as torch\.int8"):
        chosen(NEED, cache(dtype=torch.int8))


@pytest.mark.parametrize("family", ["jamba", "bamba"])
def test_model_on_auto_computes_what_it_computes_on_torch(family: str) -> None:
    config, prompt = {**CONFIGS[family], "model_type": family}, random_prompt(30, seed=1)
    ours = model_from_config(config, backends=BackendChoice(attention="auto", mamba="auto"))
    found = PagedDriver(ours).step({"a": prompt})["a"]
    assert torch.equal(found, PagedDriver(model_from_config(config)).step({"a": prompt})["a"])


def test_mamba_auto_takes_mamba_ssm_where_its_pages_lie_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in mamba.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    backend = mamba2_backends.get("auto")(MAMBA2)
    pages = {"conv": torch.zeros(2, 80, 3), "ssm": torch.zeros(2, 6, 8, 4)}
    backend.check_cache("layers.0", pages)
    assert backend.chosen.name == "torch"
    monkeypatch.setattr(mamba2_backends.get("mamba_ssm"), "devices", None)
    backend.check_cache("layers.0", pages)
    assert backend.chosen is not None
    assert backend.chosen.name == "mamba_ssm"


def test_every_name_is_known() -> None:
    assert set(attention_backends.names()) >= {*PAGED, "torch", "auto"}
    assert set(mamba_backends.names()) >= {"mamba_ssm", "torch", "auto"}
    assert set(mamba2_backends.names()) >= {"mamba_ssm", "torch", "auto"}
