"""A research framework for the KV caches of hybrid models."""

from kvhybrid import compiled as compiled  # before any other module: it chooses their form
