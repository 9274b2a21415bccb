"""Upper bounds of hits: what no policy can exceed on a trace, one bound per file."""

LEVELS = ("none", "unlimited", "min", "optimum")
"""Which bounds a replay computes: those up to the chosen one."""
