// What the data plane has room for, and why. The control plane reads its limits from here.

// Elements of 32 bits in a word. p4c and bmv2 take words of up to 2048 bits, and one operation on a
// word costs bmv2 hardly more than one on 32 bits, so a word is as wide as it may be.
#define LANES 64

#define WORD_BYTES 256

// Bytes of elements in a packet: what an MTU of 1500 leaves, five words and a rest.
#define MOST_BYTES 1464

// Segments of both rounds of all jobs: 2 x 32768 x 1464 bytes are vectors of 48 MB in all. bmv2 takes
// 270 MB for so many slots of six words while they are empty.
#define SLOTS 65536

// Jobs at a time. A contributor bitmap has 64 bits (the protocol's most), so a job has 64 members.
#define JOBS 64
#define JOB_MEMBERS 64
#define MEMBERS 4096

// Stands for the switch above where others have their rank.
#define PARENT 64

// Stretches of rounds that differ in who takes part: the members of a job that have just joined may
// do so from different rounds on, which is past after two rounds. One job may need seven.
#define RULES 512

// Stations known to ordinary forwarding. Those beyond are forwarded by the control plane.
#define STATIONS 4096

// The port that leads to the control plane: bmv2 has 9 bits for ports, and drops what goes to 511.
#define CPU_PORT 510

// Multicast groups (bmv2 has 4096): job j has group 1 + j; FLOOD + p is all ports but p.
#define FLOOD 1024
