"""The lab: what a trace says about prefix caching. No engine, no torch."""
