"""Plays random histories in the simulated world against an oracle: `iswitch soak`.

`generate` makes a `Scenario` of a seed: a network, its jobs, and the events that befall them.
`run` plays it with the switches and worker sessions of the real worlds, and the oracle checks every
round. `shrink` finds a shorter scenario that fails, too.
docs/soak.md lists what is checked.
"""
