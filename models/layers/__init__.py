"""Layers that model families share, one kind per file."""
