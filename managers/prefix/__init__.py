"""Keys become numbers: the index of prefixes, the runs it is made of, and the chains that requests hold."""
