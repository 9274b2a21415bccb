"""For every test: nothing goes to the network, and workers that run side by side take one thread each.

Hypothesis draws the same examples in every run (profile ``ci``). ``HYPOTHESIS_PROFILE=explore`` draws new ones and
does not shrink what it finds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, settings

os.environ["HF_HUB_OFFLINE"] = "1"
with suppress(ValueError):  # a shell ignores Ctrl-C for what it runs in the background, and so do its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["WANDB_MODE"] = "offline"
os.environ.setdefault("OMP_NUM_THREADS", "1")

_SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile(
    "explore", deadline=None, suppress_health_check=_SLOW_IS_FINE, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch on one thread: fastest for tiny models, and the same sums in every run."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
