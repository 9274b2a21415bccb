"""Replaying a trace: the real scheduler and cache manager, no model, and a modelled clock."""
