"""How a group's blocks live: the block pool, the orders of reuse, and single-type managers, one per file."""

if __name__ != "kvhybrid.managers":
    raise ImportError(f"import this folder as kvhybrid.managers, not as {__name__}")
