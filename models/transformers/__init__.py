"""Any decoder of transformers: its weights and its forward pass, with a cache in the pages of the byte pool."""
