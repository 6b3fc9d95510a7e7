"""Runs, shows and records the trainings of `iswitch demo` and `iswitch train`."""

ITERATIONS = 300  # of the demo: enough to learn
STALENESS = 3  # updates, unless the options say otherwise
