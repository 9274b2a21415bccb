"""Scenario files: a cache configuration, steps, and what the cache manager must answer."""
