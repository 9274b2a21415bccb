"""The blocks that all groups share: counts, keys, the free queue, observers."""
