"""Hydra groups: the YAML that ships with kvhybrid."""

if __name__ != "kvhybrid.conf":
    raise ImportError(f"import this folder as kvhybrid.conf, not as {__name__}")
