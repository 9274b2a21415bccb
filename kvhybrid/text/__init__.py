"""Tokenization, and the text that comes with Python."""
