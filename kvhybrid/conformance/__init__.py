"""The conformance kit: the checks of ``kvhybrid check-spec`` for authors of specs."""
