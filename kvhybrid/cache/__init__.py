"""The cache manager: which blocks a request gets, and how much of its prompt is cached."""
