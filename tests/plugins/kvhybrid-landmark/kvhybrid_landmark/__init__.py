"""Landmark windows: a spec, an attention backend and a model family that kvhybrid does not have."""
