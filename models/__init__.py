"""Hybrid models in plain torch: one family per file, layers, and kernel backends."""

if __name__ != "kvhybrid.models":
    raise ImportError(f"import this folder as kvhybrid.models, not as {__name__}")
