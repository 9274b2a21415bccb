"""Hydra applications over ``conf/``: launching one, its schema, its errors, its sweeps."""
