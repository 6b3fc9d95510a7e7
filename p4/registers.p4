// What the data plane remembers, and how the control plane reads and writes it.
//
// A HOLD is answered when every packet before it has gone through the ingress, which is one thread:
// so the answer, and what is read until the GO, is the state as it stays until then.

register<bit<144>>(SLOTS) segment_state;  // epoch, round, complete, count, bitmap
register<round_t>(JOBS) job_high;
register<bit<8>>(JOBS) job_flags;
register<bit<64>>(JOBS) job_contributors;
register<round_t>(MEMBERS) member_contributed;
register<bit<8>>(MEMBERS) member_flags;
register<bit<64>>(MEMBERS) member_seen;
register<bit<1>>(1) is_held;
register<bit<32>>(1) next_order;

control Registers(inout headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard) {
    apply {
        bit<32> job = (bit<32>)hdr.cpu.job;
        bit<32> member = job * JOB_MEMBERS + (bit<32>)hdr.cpu.rank;
        if (meta.op == op_t.GO) {
            is_held.write(0, 0);
            mark_to_drop(standard);
        } else if (meta.op == op_t.KEEP) {
            if (hdr.cpu.flags & KEEP_JOB != 0) {
                job_high.write(job, hdr.cpu.high);
                job_flags.write(job, hdr.cpu.flags & (HIGH_CONTRIBUTED | ANY_COMPLETED));
                job_contributors.write(job, hdr.cpu.contributors);
            }
            if (hdr.cpu.flags & KEEP_MEMBER != 0) {
                member_contributed.write(member, hdr.cpu.contributed);
                member_flags.write(member, hdr.cpu.flags & HAS_CONTRIBUTED);
                member_seen.write(member, (bit<64>)standard.ingress_global_timestamp);
            }
            mark_to_drop(standard);
        } else {
            if (meta.op == op_t.HOLD) {
                is_held.write(0, 1);
            }
            bit<144> stored;
            bit<8> of_job;
            bit<8> of_member;
            segment_state.read(stored, hdr.cpu.slot);
            job_flags.read(of_job, job);
            member_flags.read(of_member, member);
            hdr.cpu.flags = of_job | of_member;
            if (stored[143:112] == hdr.cpu.high) {  // the epoch that is asked about
                hdr.cpu.flags = hdr.cpu.flags | stored[79:72];
                hdr.cpu.round = stored[111:80];
                hdr.cpu.bitmap = stored[63:0];
            } else {
                hdr.cpu.round = 0;
                hdr.cpu.bitmap = 0;
            }
            job_high.read(hdr.cpu.high, job);
            job_contributors.read(hdr.cpu.contributors, job);
            member_contributed.read(hdr.cpu.contributed, member);
            member_seen.read(hdr.cpu.seen, member);
            hdr.cpu.now = (bit<64>)standard.ingress_global_timestamp;
            next_order.read(hdr.cpu.next, 0);
            standard.egress_spec = CPU_PORT;
        }
    }
}
