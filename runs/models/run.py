"""Which causal language models of transformers can be planned: each type is planned and run, small, on a CPU.

Writes docs/models.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvhybrid.errors import one_line
from kvhybrid.planning import PlanningError
from kvhybrid.planning.capacity import kind_name
from kvhybrid.planning.observed import Observation, observe
from kvhybrid.planning.rules import CacheOptions, layer_specs
from kvhybrid.run_folder import RunFolder
from runs.models.small import HYBRIDS, OTHERS, REFUSED, tiny_config, tiny_model
from runs.models.stored import lengths_of, planned_bytes, stored_bytes

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "models.md"
MOST_PARAMETERS = 300_000_000
"""A small config with more than this, because a default is large, is not run."""
MOST_SHOWN = 120
"""Maximum length of a reason, in characters."""

RUN_BY_TRANSFORMERS: Collection[str] = ()
"""Types whose small models are tested with ``model=transformers``."""

EQUAL, REFUSED_HERE, NOT_TESTED = "equal", "refused", "not tested"
HEAD = f"""# Models of transformers

Every causal language model type of transformers {transformers.__version__}, and whether its cache can be planned.
`python -m runs.models.run` writes this page in a few minutes; see [runs/models](../runs/models).

- **kinds**: what the layers of the type's small config keep. A type that has another one as its decoder is planned
  as that one.
- **plan**: *{EQUAL}* if the planned bytes of every layer are those that a small real model with random weights
  stores on a CPU after `generate`, at lengths below and above its windows; *{REFUSED_HERE}* if `kvhybrid plan`
  refuses the small config; otherwise *different* or *{NOT_TESTED}*.
- **model=transformers**: whether a test runs the type through kvhybrid's pages.
"""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model_type: str
    kinds: str
    plan: str
    reason: str = ""

    def __str__(self) -> str:
        run = "tested" if self.model_type in RUN_BY_TRANSFORMERS else NOT_TESTED
        return f"| `{self.model_type}` | {self.kinds} | {self.plan} | {run} | {self.reason} |"


def row_of(model_type: str) -> Row:
    """Plan a small model of ``model_type``, run it, and compare the bytes of every layer."""
    try:
        config = tiny_config(model_type, small_config(model_type))
    except Exception as error:  # transformers checks configs with exceptions of many classes
        return Row(model_type, "", NOT_TESTED, _short(f"no small config: {one_line(error)}"))
    decoder = config.get_text_config(decoder=True).model_type
    if decoder != model_type:
        return Row(model_type, f"as `{decoder}`", "")
    try:
        seen = observe(config.to_dict(), "float32")
        specs = layer_specs(seen, CacheOptions(all_stored=True))
    except PlanningError as error:
        reason = str(error).removeprefix(f"model_type {model_type!r}: ")
        return Row(model_type, "", REFUSED_HERE, _short(reason))
    kinds = ", ".join(dict.fromkeys(kind_name(spec).partition(" ")[0] for spec in specs.values()))
    if seen.num_parameters > MOST_PARAMETERS:
        size = f"{seen.num_parameters / 1e6:,.0f} million parameters"
        return Row(model_type, kinds, NOT_TESTED, f"the small config has {size}")
    torch.manual_seed(0)
    return Row(model_type, kinds, *_compared(seen, lengths_of(specs), config))


def small_config(model_type: str) -> dict[str, object]:
    """What the small config of ``model_type`` needs beside `SIZES`."""
    if model_type in REFUSED:
        return REFUSED[model_type][0]
    return HYBRIDS.get(model_type) or OTHERS.get(model_type, {})


def _compared(seen: Observation, lengths: Sequence[int], config: object) -> tuple[str, str]:
    """The columns *plan* and *reason*."""
    try:
        for num_tokens in lengths:
            stored = stored_bytes(tiny_model(config), torch.arange(num_tokens)[None] % 60 + 3)
            planned = planned_bytes(seen, num_tokens)
            if planned != stored:
                sums = f"{sum(stored.values()):,} bytes stored, {sum(planned.values()):,} planned"
                return "different", f"after {num_tokens} tokens: {sums}"
    except Exception as error:  # a model that does not run is a row of the table
        return NOT_TESTED, _short(f"the small model does not run: {type(error).__name__}: {one_line(error)}")
    return EQUAL, ""


def _short(reason: str) -> str:
    shown = reason if len(reason) <= MOST_SHOWN else f"{reason[:MOST_SHOWN].rstrip()} …"
    return shown.replace("|", "\\|").replace("`", "'").replace("<", "&lt;")


def page(rows: Sequence[Row]) -> str:
    """The whole page."""
    several = [row for row in rows if "," in row.kinds]
    equal = [row for row in rows if row.plan == EQUAL]
    decoders = sum(row.kinds.startswith("as ") for row in rows)
    counts = (
        f"Of {len(rows)} types, {len(equal)} are equal and {decoders} are planned as their decoder. Of the "
        f"{len(several)} types with several kinds, {sum(row in equal for row in several)} are equal."
    )
    table = [
        "| model type | kinds | plan | model=transformers | reason |",
        "|---|---|---|---|---|",
        *map(str, rows),
    ]
    return "\n".join([HEAD, counts, "", *table]) + "\n"


def model_types() -> list[str]:
    """Every causal language model type of transformers that has a config."""
    return sorted(name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name in CONFIG_MAPPING)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runs.models.run", description=__doc__)
    parser.parse_args(given)
    torch.set_num_threads(1)
    RunFolder(DOCS).write_text(PAGE, page([row_of(name) for name in model_types()]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
