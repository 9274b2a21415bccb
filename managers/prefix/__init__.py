"""Prefix keys as small integers: the index of prefixes, its runs, and the key chains of requests."""
