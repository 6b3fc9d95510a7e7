"""Random histories in the simulated world, against an oracle: `iswitch soak`.

A `Scenario` (from a seed, `generate`) says what network there is, which jobs run in it and what
happens to them; `run` plays it with the switches and worker sessions of the real worlds, and
the oracle looks after every round; `shrink` finds a shorter scenario that fails as well.
docs/soak.md lists what is checked.
"""
