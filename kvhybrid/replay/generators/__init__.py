"""Generated traces: requests from sizes and a seed, one kind per file. They have prefix ids but no tokens."""
