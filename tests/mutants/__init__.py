"""What soak and the unit tests see: defects by the dozen, each put in by itself.

`table/*.toml` has the mutants, `make mutants` plays them; docs/soak.md says how to read the result.
"""
