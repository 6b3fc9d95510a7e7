"""The times of allreduces, packet by packet, without an event queue.

A line serves packets one after the other, so the times of all its packets are one cumulative
maximum. A switch has an aggregate when the last of its children's packets has come, which is an
element-wise maximum, and sends it down to all of them. So a round is a few array operations for
each level of the tree, on blocks of segments (`aggregation`). Rings go step by step, all workers
side by side (`ring`); other exchanges of messages have their times improved, pass by pass, until
nothing changes (`messages`), as have those of rounds that lose packets (`lossy`). `steps` plays
programs that call many of them while they compute on; `versions` plays asynchronous workers, whose
contributions it follows as wholes. The simulated world moves the same packets one by one, and
`tests/worlds/test_model.py` compares the two to the nanosecond, where nothing is lost.
"""
