// IPv4 and UDP checksums: verified in data for the accelerator, computed in aggregates.

#define IPV4_FIELDS                                                                             \
    { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.length,             \
      hdr.ipv4.id, hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol,          \
      hdr.ipv4.source, hdr.ipv4.destination }

// Of the headers of elements those that are not there count nothing.
#define UDP_FIELDS                                                                              \
    { hdr.ipv4.source, hdr.ipv4.destination, 8w0, hdr.ipv4.protocol, hdr.udp.length,            \
      hdr.udp.source, hdr.udp.destination, hdr.udp.length, hdr.seg.round, hdr.seg.index,        \
      hdr.words[0].lanes, hdr.words[1].lanes, hdr.words[2].lanes, hdr.words[3].lanes,           \
      hdr.words[4].lanes, hdr.half.lanes, hdr.quarter.lanes, hdr.eighth.lanes, hdr.four.lanes,  \
      hdr.two.lanes, hdr.one.lanes, hdr.last.lanes }

control SwitchVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.seg.isValid() && !meta.is_order,
                        IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
        verify_checksum(meta.well_formed && hdr.udp.checksum != 0 && !meta.is_order,
                        UDP_FIELDS, meta.checksum, HashAlgorithm.csum16);
    }
}

control SwitchComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.deliver, IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum(meta.deliver, UDP_FIELDS, hdr.udp.checksum, HashAlgorithm.csum16);
    }
}
