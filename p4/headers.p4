// Formats: Ethernet, IPv4, UDP, the protocol's Seg and elements, and what goes to and from the CPU.

const bit<16> TYPE_IPV4 = 0x0800;
const bit<16> TYPE_ARP = 0x0806;
const bit<8> PROTOCOL_UDP = 17;
const bit<6> DSCP_DATA = 0x1C >> 2;  // the ToS byte without its two ECN bits

header ethernet_t {
    mac_t destination;
    mac_t source;
    bit<16> type;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> length;
    bit<16> id;
    bit<2> flags;
    bit<14> fragment;  // "more fragments", and the offset
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    ip_t source;
    ip_t destination;
}

header udp_t {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

header seg_t {
    round_t round;
    bit<32> index;
}

// A packet of n bytes is n / 256 whole words, and headers of 128, 64, ... 2 bytes for the rest, as the
// binary digits of n have it: P4 can compute with no header whose length varies.
header word_h { word_t lanes; }
header half_h { bit<1024> lanes; }
header quarter_h { bit<512> lanes; }
header eighth_h { bit<256> lanes; }
header four_h { bit<128> lanes; }
header two_h { bit<64> lanes; }
header one_h { bit<32> lanes; }
header last_h { bit<16> lanes; }  // the last one of an odd number of 16 bits

// In front of every frame at the CPU port. Towards the CPU `op` is why it comes; towards the switch
// what is to be done. An answer to LOOK or HOLD has all that the registers hold of what is named, and
// the question's number. All else the switch is told has numbers in a row, and is done in that order,
// once each: what is not the next is dropped, and told again from there.
enum bit<8> op_t {
    CONTROL = 0,   // to the CPU: what the data plane does not handle
    HELD = 1,      // to the CPU: data that came during a HOLD
    SEND = 2,      // the frame leaves at `port` as it is
    RECEIVE = 3,   // the frame counts as having come in at `port`
    ACCEPT = 4,    // the same of a contribution that the control plane has let in
    LOOK = 5,      // answer
    HOLD = 6,      // answer; from now on all data goes to the CPU
    GO = 7,        // ends a HOLD
    KEEP = 8,      // write the registers of a job (flag KEEP_JOB) or a member (KEEP_MEMBER)
    RESEND = 9,    // the frame becomes the kept aggregate of its Seg, for `rank` behind `port`
    FORCE = 10,    // complete an open segment as it is; the frame becomes its sum, for whom that is
    CONTRIBUTE = 11  // the frame becomes the sum of the members here, for the parent, once more
}

const bit<8> IS_COMPLETE = 1;      // the segment
const bit<8> HAS_CONTRIBUTED = 2;  // the member, to round `contributed`
const bit<8> HIGH_CONTRIBUTED = 4; // somebody has contributed to round `high` of the job
const bit<8> ANY_COMPLETED = 8;    // some segment of the job has become complete
const bit<8> KEEP_JOB = 16;
const bit<8> KEEP_MEMBER = 32;
const bit<8> IS_SENT = 64;         // the segment, to the parent, whose aggregate has not come

header cpu_t {
    op_t op;
    bit<8> flags;
    bit<16> port;
    job_t job;
    bit<16> rank;
    slot_t slot;
    round_t round;          // of the segment in this slot
    bit<64> bitmap;         // of its contributors
    round_t high;           // the job's highest round; in LOOK and HOLD the job's epoch
    round_t contributed;    // the newest round the member contributed to
    bit<64> contributors;   // bitmap of all that have contributed since the job began, or was reset
    bit<64> seen;           // when the member last sent data, in us of the switch's clock
    bit<64> now;
    bit<32> number;         // of the question, or the order
    bit<32> next;           // in an answer: the number of the next order
}

struct headers_t {
    cpu_t cpu;
    ethernet_t ethernet;
    ipv4_t ipv4;
    udp_t udp;
    seg_t seg;
    word_h[5] words;
    half_h half;
    quarter_h quarter;
    eighth_h eighth;
    four_h four;
    two_h two;
    one_h one;
    last_h last;
}

// What became of a packet; the control plane's counters have the names.
enum bit<8> fate_t {
    NONE = 0,
    ACCUMULATED = 1,
    DUPLICATE = 2,
    LATE = 3,
    OUT_OF_WINDOW = 4,
    BEFORE_JOIN = 5,
    HALTED = 6,
    STRANGER = 7,
    MALFORMED = 8,
    BAD_CHECKSUM = 9,
    AGGREGATE = 10,
    RETRANSMITTED = 11,
    FORWARDED = 12,
    SAME_PORT = 13,
    FROM_PARENT = 14,
    REPEATED = 15,
    TO_PARENT = 16,
    TO_CPU = 17
}

struct metadata_t {
    bit<9> port;            // where the frame came in, or is said to have
    op_t op;                // what the control plane wants; CONTROL: nothing
    bit<16> size;           // bytes of elements
    bit<16> rest;           // of these, not yet parsed
    bit<16> elements_sum;   // of the elements, in ones' complement
    bit<16> udp_checksum;   // as it is computed
    bool well_formed;       // as a data packet
    bool is_order;          // the control plane wants a segment to be sent, and made the frame
    mac_t own_mac;
    ip_t own_ip;
    bool is_data;           // for the aggregation
    bool to_cpu;
    fate_t fate;
    // from the tables
    job_t job;
    bit<16> rank;
    bit<64> bit_of_rank;
    bool punt;
    bool has_first;
    round_t first;
    bool from_parent;       // the frame is
    bit<4> kind;            // of elements and operation
    bool halted;
    bool gathered;          // as many workers have come as were expected
    bool has_parent;
    bit<9> uplink;          // the port that leads there
    bool has_lowest;
    round_t lowest;
    bit<32> epoch;
    bit<32> segments;
    bit<16> full_size;
    bit<16> last_size;
    slot_t base;
    bit<64> participants;
    bit<8> needed;
    // from the registers
    slot_t slot;            // of the segment's state
    slot_t sum_slot;        // of its sum here, or of the aggregate that came from the parent
    round_t high;
    bit<8> job_flags;
    bool is_first;          // the segment's first contribution
    bool is_complete;
    bool is_sent;           // to the parent
    bit<8> count;
    bit<64> bitmap;
    // what is to be done
    bool accumulate;
    bool deliver;           // the packet becomes the aggregate
    bool to_all;
    bool to_parent;
    adder_t adder;
}
