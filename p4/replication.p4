// Sends an aggregate to all members, or to one, or a sum to the parent. Each copy gets its receiver's addresses at egress.

control Replication(inout headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard) {
    ElementsSum() elements_sum;

    apply {
        elements_sum.apply(hdr, meta);
        hdr.cpu.setInvalid();
        hdr.ethernet.source = meta.own_mac;
        hdr.ipv4.source = meta.own_ip;
        hdr.ipv4.ecn = 0;
        hdr.ipv4.id = 0;
        hdr.ipv4.flags = 1;  // don't fragment
        hdr.ipv4.ttl = 64;
        hdr.udp.source = ISWITCH_PORT;
        if (meta.to_all) {
            standard.mcast_grp = 1 + meta.job;
        } else if (meta.to_parent) {
            standard.egress_spec = meta.uplink;
        } else {
            standard.egress_spec = meta.port;
        }
    }
}

control Addressing(inout headers_t hdr, inout metadata_t meta,
                   inout standard_metadata_t standard) {
    action receiver(mac_t mac, ip_t ip, bit<16> port) {
        hdr.ethernet.destination = mac;
        hdr.ipv4.destination = ip;
        hdr.udp.destination = port;
    }

    action nobody() {
        mark_to_drop(standard);
    }

    UdpChecksum() udp_checksum;

    @name(".receivers")
    table receivers {
        key = {
            meta.job: exact;
            meta.rank: exact;
        }
        actions = { receiver; nobody; }
        default_action = nobody();
        size = MEMBERS;
    }

    // Copies that leave: 0 of aggregates, 1 of ordinary frames.
    @name(".sent")
    counter(2, CounterType.packets) sent;

    apply {
        if (meta.deliver) {
            sent.count(0);
            if (meta.to_all) {
                meta.rank = standard.egress_rid;  // as the multicast group has it
            } else if (meta.to_parent) {
                meta.rank = PARENT;
            }
            receivers.apply();
            udp_checksum.apply(hdr, meta);
            hdr.udp.checksum = meta.udp_checksum;
        } else if (meta.fate == fate_t.FORWARDED) {
            sent.count(1);
        }
    }
}
