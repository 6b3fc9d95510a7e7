"""The simulated world: machines, links and faults under a virtual clock.

`VirtualNetwork` moves packets between the machines of the real worlds (a `Switch`, a worker's
`Session`) over links that `Line` impairs. It reads no clock and draws no unseeded numbers, so equal
seeds and equal calls give equal traces, byte for byte.
"""
