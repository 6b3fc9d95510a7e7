// IPv4 and UDP checksums: verified in data for the accelerator, computed in aggregates.
//
// No list of fields names a header that may be invalid: what is read of one is undefined. Which
// headers of elements there are differs from packet to packet, so these are summed up one by one,
// and their sum, 16 bits of ones' complement, stands for them in the UDP checksum.

control ElementsSum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        bit<16> inverted;
        meta.elements_sum = 0;
#define ADD(HEADER)                                                     \
        if (hdr.HEADER.isValid()) {                                     \
            hash(inverted, HashAlgorithm.csum16, 16w0,                  \
                 { meta.elements_sum, hdr.HEADER.lanes }, 32w65536);    \
            meta.elements_sum = ~inverted;                              \
        }
        ADD(words[0])
        ADD(words[1])
        ADD(words[2])
        ADD(words[3])
        ADD(words[4])
        ADD(half)
        ADD(quarter)
        ADD(eighth)
        ADD(four)
        ADD(two)
        ADD(one)
        ADD(last)
    }
}

// The checksum of a data packet, whose IPv4, UDP and Seg headers are there.
control UdpChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        hash(meta.udp_checksum, HashAlgorithm.csum16, 16w0,
             { hdr.ipv4.source, hdr.ipv4.destination, 8w0, hdr.ipv4.protocol, hdr.udp.length,
               hdr.udp.source, hdr.udp.destination, hdr.udp.length, hdr.seg.round, hdr.seg.index,
               meta.elements_sum }, 32w65536);
        if (meta.udp_checksum == 0) {  // which would say that there is none (RFC 768)
            meta.udp_checksum = 0xFFFF;
        }
    }
}

#define IPV4_FIELDS                                                                             \
    { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.length,             \
      hdr.ipv4.id, hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol,          \
      hdr.ipv4.source, hdr.ipv4.destination }

control SwitchVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.seg.isValid() && !meta.is_order,
                        IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control SwitchComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.deliver, IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
