"""Settings that both verbs share: models, backends, pool, scheduler. What conf/ is checked against."""
