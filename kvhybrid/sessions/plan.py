"""One plan: observe the model, plan its cache, write the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvhybrid.errors import InputError, OutputError
from kvhybrid.planning import CachePlan, PlanningError, longest_planned, plan_cache
from kvhybrid.planning.capacity import all_full
from kvhybrid.planning.gpu import cache_bytes
from kvhybrid.planning.rules import CacheOptions, layer_specs
from kvhybrid.report.plan_plot import plot_plan
from kvhybrid.report.plan_summary import PlanSummary
from kvhybrid.report.plan_table import print_plan
from kvhybrid.run_folder import SUMMARY, RunFolder
from kvhybrid.sessions.invocation import Invocation
from kvhybrid.sessions.plan_settings import AUTO, PlanSettings
from kvhybrid.sessions.provenance import provenance
from kvhybrid.specs import KVCacheSpec
from kvhybrid.specs.dtypes import dtype_bytes


def plan(settings: PlanSettings, folder: Path | str, invocation: Invocation | None = None) -> PlanSummary:
    """Plan the cache of ``settings.model``, print it, and write ``folder``, which is created if necessary.

    Raises:
        InputError: The model is unknown, or its cache does not fit. Nothing is written then.
        FolderTakenError: ``folder`` is not empty, or another process is writing to it.
        OutputError: ``folder`` cannot be written to.
    """
    place = RunFolder(folder)
    invocation = invocation or Invocation.from_settings("plan", settings)
    with place.claimed(invocation.overrides):
        place.require_empty()
        summary, specs = make_plan(settings, invocation)
        try:
            place.write_text("config.yaml", invocation.yaml())
            place.write_json("provenance.json", provenance(invocation, {}))
            with place.atomic_path("plan.png") as partial:
                plot_plan(summary.name, summary.plan, all_full(specs, summary.plan), partial)
            place.write_json(SUMMARY, summary.to_json())
        except OSError as error:
            place.clear()
            raise OutputError(f"{place.path}: {error.strerror}") from error
    print_plan(summary)
    return summary


def make_plan(settings: PlanSettings, invocation: Invocation) -> tuple[PlanSummary, dict[str, KVCacheSpec]]:
    """The plan and the specs that it was made from. Raises `InputError`."""
    from kvhybrid.planning.observed import observe

    dtype = None if settings.model.dtype == AUTO else settings.model.dtype
    try:
        seen = observe(settings.model.config_json(), dtype)
        specs = layer_specs(
            seen,
            CacheOptions(
                block_size=settings.block_size,
                kv_dtype=_chosen(settings.kv_dtype),
                state_dtype=_chosen(settings.state_dtype),
                tp=settings.tp,
                all_stored=settings.conv_inputs == "stored",
            ),
        )
        memory, shares = _memory(settings, seen)
        found = _planned(specs, settings, memory, seen.config)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from error
    summary = PlanSummary(
        name=settings.name,
        model_type=seen.model_type,
        num_layers=seen.num_layers,
        plan=found,
        lengths=settings.lengths,
        max_batched_tokens=settings.max_batched_tokens,
        block_size=settings.block_size,
        num_parameters=seen.num_parameters,
        overrides=invocation.overrides,
        memory=shares,
    )
    return summary, specs


def _chosen(dtype: str) -> str | None:
    return None if dtype == AUTO else dtype


def _memory(settings: PlanSettings, seen: Any) -> tuple[int, dict[str, Any]]:
    """The bytes of the cache on one GPU, and how they are computed."""
    if settings.gpu is None:
        return settings.pool.memory_bytes, {}
    weights = settings.weight_bytes
    if weights is None:
        weights = -(-seen.num_parameters * dtype_bytes(seen.dtype) // settings.tp)
    reserve = settings.reserve_bytes
    left = cache_bytes(settings.gpu, utilization=settings.utilization, weights=weights, reserve=reserve)
    return left, {"gpu": settings.gpu, "weights": weights, "reserve": reserve, "left_for_the_cache": left}


def _planned(
    specs: Mapping[str, KVCacheSpec], settings: PlanSettings, memory: int, config: Mapping[str, Any]
) -> CachePlan:
    """The plan for the requested maximum length, or else for the longest that model and memory support."""
    in_flight = settings.max_batched_tokens * settings.steps_in_flight
    wanted = settings.max_model_len or config.get("max_position_embeddings")
    if not isinstance(wanted, int):
        raise PlanningError("max_model_len is missing: the model's config has no maximum length")
    shorter = None
    if settings.max_model_len is None:
        shorter = longest_planned(
            specs,
            memory_bytes=memory,
            max_model_len=wanted,
            max_in_flight_tokens=in_flight,
            layout=settings.layout,
        )
    return plan_cache(
        specs,
        memory_bytes=memory,
        max_model_len=shorter or wanted,
        max_in_flight_tokens=in_flight,
        layout=settings.layout,
    )
