"""Configs of well-known models, without weights: ``kvhybrid plan model=NAME``."""
