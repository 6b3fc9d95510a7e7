// Whose contribution is it, to which segment, and does it count? At most one of each member does.

control BitmapChecker(inout headers_t hdr, inout metadata_t meta,
                      inout standard_metadata_t standard) {
    action stranger() {
        meta.fate = fate_t.STRANGER;
    }

    // `punt`: the control plane decides. `first`: the first round the member takes part in.
    action member(job_t job, bit<16> rank, bit<64> bit_of_rank, bit<1> punt, bit<1> has_first,
                  round_t first) {
        meta.job = job;
        meta.rank = rank;
        meta.bit_of_rank = bit_of_rank;
        meta.punt = punt == 1;
        meta.has_first = has_first == 1;
        meta.first = first;
    }

    action parent(job_t job) {
        meta.job = job;
        meta.from_parent = true;
    }

    @name(".members")
    table members {
        key = {
            meta.port: exact;
            hdr.ipv4.source: exact;
            hdr.udp.source: exact;
        }
        actions = { member; parent; stranger; }
        default_action = stranger();
        size = MEMBERS;
    }

    // Sums are in slots base .. base + 2 * segments - 1, and are void if their epoch is another. With
    // a switch above the aggregates that come from there are in as many slots behind these.
    action job(bit<4> kind, bit<1> halted, bit<1> gathered, bit<1> has_parent, bit<9> uplink,
               bit<1> has_lowest, round_t lowest, bit<32> epoch, bit<32> segments,
               bit<16> full_size, bit<16> last_size, slot_t base) {
        meta.kind = kind;
        meta.halted = halted == 1;
        meta.gathered = gathered == 1;
        meta.has_parent = has_parent == 1;
        meta.uplink = uplink;
        meta.has_lowest = has_lowest == 1;
        meta.lowest = lowest;
        meta.epoch = epoch;
        meta.segments = segments;
        meta.full_size = full_size;
        meta.last_size = last_size;
        meta.base = base;
    }

    @name(".jobs")
    table jobs {
        key = { meta.job: exact; }
        actions = { job; stranger; }
        default_action = stranger();
        size = JOBS;
    }

    apply {
        bit<32> job_index = 0;
        bit<32> member_index = 0;
        if (meta.is_order) {
            meta.job = hdr.cpu.job;
            meta.rank = hdr.cpu.rank;
        } else {
            members.apply();
        }
        if (meta.fate == fate_t.NONE) {
            jobs.apply();
            job_index = (bit<32>)meta.job;
            member_index = job_index * JOB_MEMBERS + (bit<32>)meta.rank;
        }

        // Is it a packet of this job's vectors?
        if (meta.fate == fate_t.NONE) {
            if (!meta.is_order && !meta.from_parent) {
                member_seen.write(member_index, (bit<64>)standard.ingress_global_timestamp);
            }
            bit<16> size = meta.full_size;
            if (hdr.seg.index + 1 == meta.segments) {
                size = meta.last_size;
            }
            if (!meta.well_formed || hdr.seg.index >= meta.segments || meta.size != size) {
                meta.fate = fate_t.MALFORMED;
            } else if (!meta.is_order && meta.halted) {
                meta.fate = fate_t.HALTED;
            }
        }

        // Is its round in the window, and one that its sender takes part in?
        if (meta.fate == fate_t.NONE && !meta.is_order) {
            job_high.read(meta.high, job_index);
            job_flags.read(meta.job_flags, job_index);
            int<32> ahead = (int<32>)(hdr.seg.round - meta.high);
            if (meta.op != op_t.ACCEPT) {
                if (meta.has_first && (int<32>)(hdr.seg.round - meta.first) < 0) {
                    meta.fate = fate_t.BEFORE_JOIN;
                } else if (meta.punt ||
                           (meta.has_first && hdr.seg.round == meta.first && ahead > 0)) {
                    meta.to_cpu = true;
                } else if (ahead > 1 || ahead < -1 ||
                           (meta.has_lowest && (int<32>)(hdr.seg.round - meta.lowest) < 0)) {
                    meta.fate = fate_t.OUT_OF_WINDOW;
                }
            }
            if (meta.fate == fate_t.NONE && !meta.to_cpu) {
                if (ahead > 0) {
                    meta.high = hdr.seg.round;
                    job_high.write(job_index, meta.high);
                }
                if (ahead >= 0) {
                    meta.job_flags = meta.job_flags | HIGH_CONTRIBUTED;
                    job_flags.write(job_index, meta.job_flags);
                }
                if (!meta.from_parent) {
                    round_t contributed;
                    bit<8> flags;
                    member_contributed.read(contributed, member_index);
                    member_flags.read(flags, member_index);
                    if (flags == 0 || (int<32>)(hdr.seg.round - contributed) > 0) {
                        member_contributed.write(member_index, hdr.seg.round);
                        member_flags.write(member_index, HAS_CONTRIBUTED);
                    }
                }
            }
        }

        // What is there of the segment?
        if (meta.fate == fate_t.NONE && !meta.to_cpu) {
            meta.slot = meta.base + hdr.seg.index;
            if (hdr.seg.round[0:0] == 1) {
                meta.slot = meta.slot + meta.segments;
            }
            bit<144> stored;
            segment_state.read(stored, meta.slot);
            if (stored[143:112] == meta.epoch && stored[111:80] == hdr.seg.round) {
                meta.is_complete = stored[79:72] == IS_COMPLETE;
                meta.is_sent = stored[79:72] == IS_SENT;
                meta.count = stored[71:64];
                meta.bitmap = stored[63:0];
            }
            bool done = meta.is_complete || meta.is_sent;
            bool of_parent = false;  // the aggregate that came from there, not the sum here
            if (meta.op == op_t.RESEND) {
                meta.deliver = meta.is_complete;
                of_parent = true;
            } else if (meta.op == op_t.CONTRIBUTE) {
                meta.deliver = meta.count != 0 && done;
                meta.to_parent = true;
            } else if (meta.op == op_t.FORCE) {
                meta.deliver = meta.count != 0 && !done;
                meta.to_parent = meta.has_parent;
                meta.to_all = !meta.has_parent;
            } else if (meta.from_parent) {
                meta.fate = fate_t.REPEATED;
                if (!meta.is_complete) {
                    meta.fate = fate_t.FROM_PARENT;
                    meta.accumulate = true;
                    meta.is_first = true;
                    meta.deliver = true;
                    meta.to_all = true;
                    of_parent = true;
                }
            } else if (meta.is_complete) {  // its sender has missed the aggregate
                meta.fate = fate_t.LATE;
                meta.deliver = true;
                of_parent = true;
            } else if (meta.bitmap & meta.bit_of_rank != 0) {
                meta.fate = fate_t.DUPLICATE;
            } else if (meta.is_sent) {
                meta.fate = fate_t.LATE;
            } else {
                meta.fate = fate_t.ACCUMULATED;
                meta.accumulate = true;
                meta.is_first = meta.count == 0;
                meta.bitmap = meta.bitmap | meta.bit_of_rank;
                bit<64> contributors;
                job_contributors.read(contributors, job_index);
                job_contributors.write(job_index, contributors | meta.bit_of_rank);
            }
            meta.sum_slot = meta.slot;
            if (meta.has_parent && of_parent) {
                meta.sum_slot = meta.slot + meta.segments + meta.segments;
            }
        }
    }
}
