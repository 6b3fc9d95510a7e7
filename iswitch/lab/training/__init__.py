"""What `iswitch demo` and `iswitch train` run, show and keep of a training."""

ITERATIONS = 300  # of the demo: enough to learn
STALENESS = 3  # updates, unless the options say otherwise
