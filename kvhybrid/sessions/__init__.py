"""One run or one replay, from its settings to its folder."""
