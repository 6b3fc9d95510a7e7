// From bytes to headers. What is not a whole data packet keeps its UDP payload unparsed.

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard) {
    state start {
        meta.port = standard.ingress_port;
        meta.op = op_t.CONTROL;
        transition select(standard.ingress_port) {
            CPU_PORT: parse_cpu;
            default: parse_ethernet;
        }
    }

    state parse_cpu {
        packet.extract(hdr.cpu);
        meta.op = hdr.cpu.op;
        meta.port = (bit<9>)hdr.cpu.port;
        transition select(hdr.cpu.op) {
            op_t.RECEIVE: parse_ethernet;
            op_t.ACCEPT: parse_ethernet;
            op_t.RESEND: parse_order;
            op_t.FORCE: parse_order;
            op_t.CONTRIBUTE: parse_order;
            default: accept;
        }
    }

    state parse_order {
        meta.is_order = true;
        transition parse_ethernet;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (4, 5, 0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        meta.size = hdr.udp.length - 16;
        transition select(hdr.udp.destination, hdr.ipv4.dscp, hdr.udp.length) {
            (ISWITCH_PORT, DSCP_DATA, 16 .. 16 + MOST_BYTES): parse_seg;
            default: accept;
        }
    }

    state parse_seg {
        packet.extract(hdr.seg);
        meta.rest = meta.size;
        transition select(meta.size & 1) {
            0: parse_words;
            default: accept;
        }
    }

    state parse_words {
        meta.well_formed = true;
        transition select(meta.rest) {
            WORD_BYTES .. MOST_BYTES: parse_word;
            default: parse_half;
        }
    }

    state parse_word {
        packet.extract(hdr.words.next);
        meta.rest = meta.rest - WORD_BYTES;
        transition parse_words;
    }

    // The rest: one header for each binary digit of the number of bytes.
#define PARSE_PART(PART, BYTES, NEXT)               \
    state parse_##PART {                            \
        transition select(meta.rest & BYTES) {      \
            0: NEXT;                                \
            default: take_##PART;                   \
        }                                           \
    }                                               \
    state take_##PART {                             \
        packet.extract(hdr.PART);                   \
        transition NEXT;                            \
    }

    PARSE_PART(half, 128, parse_quarter)
    PARSE_PART(quarter, 64, parse_eighth)
    PARSE_PART(eighth, 32, parse_four)
    PARSE_PART(four, 16, parse_two)
    PARSE_PART(two, 8, parse_one)
    PARSE_PART(one, 4, parse_last)
    PARSE_PART(last, 2, accept)
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.cpu);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.seg);
        packet.emit(hdr.words);
        packet.emit(hdr.half);
        packet.emit(hdr.quarter);
        packet.emit(hdr.eighth);
        packet.emit(hdr.four);
        packet.emit(hdr.two);
        packet.emit(hdr.one);
        packet.emit(hdr.last);
    }
}
