"""Rings in shared memory: packets between a switch and workers of its machine, without a kernel.

What lies in a ring are packets of docs/protocol.md, control packets too. A worker keeps its UDP
socket: the socket's address is its address at the switch, and whatever finds no room in a ring goes
by UDP. So members, leases, Help and restarts know nothing of rings.

    worker  handed over a UNIX socket               switch
    UDP socket ---- proves its address ------------> Address(host, port)
    memory A ------ mapped read-only --------------> its contributions, its `sleeps`, its `taken`
    bell (eventfd) --------------------------------> rung when the worker sleeps
    <-------------- mapped read-only -------------- memory B: packets for this worker alone
    <-------------- mapped read-only -------------- memory G: sums for a whole group of workers
    <---------------------------------------------- bell of the switch, one for each worker

**Memory.** Each memory has one writer; all others can only read it, which the kernel enforces by
seals (`memory.py`). It begins with a page of 64-bit words, each on a cache line of its own:

    byte 0    WRITTEN  bytes that the writer has put into this ring since it began
    byte 64   SLEEPS   0, or the number of the sleep for which the writer wants its bell rung
    byte 128  TAKEN    bytes that the writer has taken from the ring in the opposite direction
    byte 192  GROUP    number of the group that it is in, above 40 bits for the lines of 64 bytes
                       taken from its ring, modulo 2^40

The ring's bytes lie behind that page; byte p of the stream lies at p mod their number. A ring holds
records. A record is a head of 64 bytes and the packets of one `Burst`, and ends at a multiple of
64; it never wraps round the end:

    byte 0    bytes of the record, head included
    byte 8    packets; 0: nothing is in this record, which only fills the ring from here to its end
    byte 16   bytes of each packet but the last
    byte 24   bytes of the last packet
    byte 32   ToS

A record counts once WRITTEN includes it, so a writer that is killed leaves no half record. A record
is not overwritten before its reader's TAKEN includes it. A reader copies a head once, checks the
copy (`ring.py`), and hands out the packets where they lie: a writer that changes them meanwhile
spoils its own packets and nothing else.

**Wake-up.** Whoever wants to sleep writes a new number into SLEEPS, looks once more into the rings,
and sleeps. Whoever has written a record looks at SLEEPS behind it, and rings the bell once for each
number. Between the store and the load of either side stands a full barrier (`ring.fence`).

**Kernels.** `iswitch.fast` has both ends compiled, too, for the plain case: the same layout, checks
and barriers (`fast.records`). Between two calls the positions and the numbers of sleeps are those
of the objects here, which the Python way uses; a kernel borrows them for a call.

**Processors.** Stores must become visible in their order, which x86-64 promises and others do not;
elsewhere no ring is offered.
"""
