// The input arbiter: data for the accelerator, what is for the control plane, ordinary traffic.

control Arbiter(inout headers_t hdr, inout metadata_t meta,
                inout standard_metadata_t standard) {
    ElementsSum() elements_sum;
    UdpChecksum() udp_checksum;

    action own(mac_t mac, ip_t ip) {
        meta.own_mac = mac;
        meta.own_ip = ip;
    }

    @name(".own_address")
    table own_address {
        actions = { own; }
        default_action = own(0, 0);
    }

    apply {
        own_address.apply();
        bool for_us = hdr.ethernet.destination == meta.own_mac;
        if (meta.is_order) {
            meta.is_data = true;
        } else if (for_us && hdr.seg.isValid() && hdr.ipv4.destination == meta.own_ip) {
            meta.is_data = true;
            if (standard.parser_error != error.NoError) {
                meta.fate = fate_t.MALFORMED;
            } else if (standard.checksum_error == 1) {  // of IPv4
                meta.fate = fate_t.BAD_CHECKSUM;
            } else if (meta.well_formed && hdr.udp.checksum != 0) {
                elements_sum.apply(hdr, meta);
                udp_checksum.apply(hdr, meta);
                if (meta.udp_checksum != hdr.udp.checksum) {
                    meta.fate = fate_t.BAD_CHECKSUM;
                }
            }
        } else if (for_us || hdr.ethernet.type == TYPE_ARP) {
            meta.to_cpu = true;
        }
    }
}
