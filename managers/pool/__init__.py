"""The blocks that all groups share: reference counts, keys, the free queue, observers."""
