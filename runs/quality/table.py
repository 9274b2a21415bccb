"""The table of a sweep over windows: what each saves and what it costs.

    kvhybrid run experiment=quality
    python runs/quality/table.py FOLDER

FOLDER is the last line that the sweep prints.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEADINGS = ("window", "bits per byte", "blocks a request", "requests at once", "hit rate", "evictions")


def row(folder: Path) -> tuple[str, ...]:
    """The figures of one job."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    changed = dict(override.split("=", 1) for override in summary["overrides"])
    groups = [group["name"] for group in summary["groups"]]
    held = sum(step[f"group/{name}/blocks_live"] for step in steps for name in groups)
    running = sum(step["step/running"] for step in steps)
    return (
        changed["model.window"],
        f"{summary['quality/bits_per_byte']:.3f}",
        f"{held / running:.1f}",
        f"{running / len(steps):.1f}",
        f"{summary['hit_rate']:.1%}",
        f"{sum(summary[f'group/{name}/evictions'] for name in groups):,}",
    )


def main() -> None:
    folders = sorted((place for place in Path(sys.argv[1]).iterdir() if place.is_dir()), key=lambda p: int(p.name))
    lines = [HEADINGS, tuple("--:" for _ in HEADINGS), *map(row, folders)]
    print("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


if __name__ == "__main__":
    main()
