"""A research framework for the KV caches of hybrid models."""
