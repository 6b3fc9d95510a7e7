// Ordinary traffic: a bridge. It learns in the control plane, which is sent the first frames of a
// station, and forwards these itself.

control Forwarding(inout headers_t hdr, inout metadata_t meta,
                   inout standard_metadata_t standard) {
    action known() { }

    action unknown() {
        meta.to_cpu = true;
    }

    // Who sent it, and from there?
    @name(".senders")
    table senders {
        key = {
            meta.port: exact;
            hdr.ethernet.source: exact;
        }
        actions = { known; unknown; }
        default_action = unknown();
        size = STATIONS;
    }

    // The addresses of members are theirs behind their port only; the control plane judges others.
    action owner(bit<9> port) {
        meta.to_cpu = meta.port != port;
    }

    @name(".owners")
    table owners {
        key = { hdr.ipv4.source: exact; }
        actions = { owner; known; }
        default_action = known();
        size = MEMBERS;
    }

    action forward(bit<9> port) {
        standard.egress_spec = port;
        meta.fate = fate_t.FORWARDED;
    }

    action flood() {
        standard.mcast_grp = FLOOD + (bit<16>)meta.port;
        meta.fate = fate_t.FORWARDED;
    }

    @name(".stations")
    table stations {
        key = { hdr.ethernet.destination: exact; }
        actions = { forward; flood; }
        default_action = flood();
        size = STATIONS;
    }

    apply {
        senders.apply();
        if (hdr.ipv4.isValid() && !meta.to_cpu) {
            owners.apply();
        }
        if (!meta.to_cpu) {
            if (hdr.ethernet.destination[47:8] == 0x0180C20000) {  // spanning tree and the like
                meta.to_cpu = true;
            } else {
                stations.apply();
                if (standard.egress_spec == meta.port && standard.mcast_grp == 0) {
                    meta.fate = fate_t.SAME_PORT;
                    mark_to_drop(standard);
                }
            }
        }
    }
}
