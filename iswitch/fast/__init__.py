"""The fast path: the plain case of switch and worker, compiled with Numba (`iswitch[fast]`).

What is compiled. `switch_kernel` receives, checks, adds and sends a member's contributions, many
batches in one call without the interpreter; below another switch it passes on that switch's
aggregates (`from_above`). Of asynchronous jobs it makes versions, or partial sums where a switch
above makes the versions (`versions`), and answers marks, so that it need not return for each
(`marks`); it asks the switch above what is counted of partial sums (`going_up`). OpenSSL makes the
MACs of keyed jobs (`seals`). docs/performance.md lists which jobs, element types and operations it
serves.

`worker_kernel` plays a worker's allreduce of any size, as long as the aggregates come in order: it
sends what the window allows, waits, receives, and puts aggregates in their place. Where segments
have owners, `worker_owned` finds the place of each, as long as those of a block come in order. It
moves bytes, so it serves all element types and operations. A key guards only control packets, which
go the Python way.

Who owns the tables. The core's objects own sums, states and bitmaps, and a kernel works on their
memory; the few numbers of a window and of members are lent to it in arrays for one call, and its
counts are added to `Counters` when it returns. So each fact has one owner. The Python way decides
which rules are in force and hands them over as numbers, such as the bitmap that makes a segment
complete. `plain` says which jobs these are at present, and where their sums lie; `places` finds a
segment there, in a job with fewer slots than segments, too. `contributions` takes a member's
packets; where segments have owners, `owned` cuts them and closes rounds. Each set of receivers has
a row of the table of jobs: all members, or one, to which segments of its own go (`owners`).

Rings in shared memory (`iswitch.ports.rings`). The same call of the switch's kernel takes records
out of rings (`ring_receiving`) and puts sums into them (`ring_sending`); workers with rings have a
kernel of their own, `ring_worker_kernel`. `records` says how both keep the order of loads and
stores, and `ring_lending` lends rings to a call. Behind links with a rate, `ring_pacing` hands
packets on when they are due, and `ring_lanes` lends it the links.

Waits. `waking` says how long a kernel looks for packets before it sleeps.

Captures. `capture_kernel` writes the blocks of a capture for the frames of a super-datagram, in the
thread that writes the file, without the interpreter's lock (`capturing`).

What goes the Python way. All that is not plain: control packets, newcomers, late and double
segments, damaged and foreign packets, and every job, port or option that no kernel serves. The
kernel stops before such a datagram, also in the middle of a batch, and the Python way handles it as
if it had received it. Tests compare both ways on random batches.

How it is switched off. `ISWITCH_FAST=0` or `--no-fast`; without Numba it is off by itself.
`iswitch doctor` says which way runs.

When it is compiled. `iswitch doctor` compiles all kernels, and so does a command that launches
switches, before the first one (`python -m iswitch.fast`). Any other process that finds them not
compiled says what it waits for, and compiles before it serves or joins. They are kept in
`$XDG_CACHE_HOME/iswitch/fast`, or in `NUMBA_CACHE_DIR`, apart for each version of their source and
of Numba, and for each kind of processor (`keeping`); a folder that others can write to is refused.
Numba is imported only by processes that use a kernel (`loading.load`).
"""
