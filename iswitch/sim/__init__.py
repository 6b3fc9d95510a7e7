"""The simulated world: machines, links and faults under a virtual clock.

`VirtualNetwork` moves packets between the machines of the real worlds (a `Switch`, a worker's `Session`)
over links that `Line` impairs. Nothing in it looks at a clock or draws a number of its own: the
same seed and the same calls give the same trace, byte for byte.
"""
