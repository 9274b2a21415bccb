"""Hydra choices, found by ``hydra.searchpath=[pkg://kvhybrid_landmark.conf]``."""
