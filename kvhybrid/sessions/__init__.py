"""One run or replay, from its settings to its run folder."""
