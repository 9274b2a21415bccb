"""User-facing output of a run: progress, tables, plots."""
