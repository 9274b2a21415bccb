"""Which requests compute which tokens in a step. No torch: engine and replay both use it."""
