"""The conformance kit: what ``kvhybrid check-spec`` checks for the author of a spec."""
