"""Runs a model through the paged cache: batches, pages, sampling."""
