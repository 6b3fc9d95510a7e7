// Counts contributions, and says whether the segment is complete now.

control Counter(inout headers_t hdr, inout metadata_t meta) {
    // Complete are sums of all `participants`, and of `needed` contributions at least.
    action rule(bit<64> participants, bit<8> needed) {
        meta.participants = participants;
        meta.needed = needed;
    }

    action never() {
        meta.needed = 255;
    }

    @name(".rules")
    table rules {
        key = {
            meta.job: exact;
            hdr.seg.round: range;
        }
        actions = { rule; never; }
        default_action = never();
        size = RULES;
    }

    apply {
        bool changes = meta.accumulate || (meta.deliver && meta.op == op_t.FORCE);
        bool completes = meta.from_parent && meta.gathered;
        if (meta.accumulate && !meta.from_parent) {
            meta.count = meta.count + 1;
            rules.apply();
            if (meta.count >= meta.needed &&
                meta.bitmap & meta.participants == meta.participants) {
                completes = true;
                meta.deliver = true;
                meta.to_parent = meta.has_parent;
                meta.to_all = !meta.has_parent;
            }
        }
        if (meta.accumulate && completes && meta.job_flags & ANY_COMPLETED == 0) {
            job_flags.write((bit<32>)meta.job, meta.job_flags | ANY_COMPLETED);
        }
        if (changes) {
            bit<8> how_far = 0;
            if (meta.to_parent) {
                how_far = IS_SENT;
            } else if (meta.deliver) {
                how_far = IS_COMPLETE;
            }
            segment_state.write(meta.slot, meta.epoch ++ hdr.seg.round ++ how_far ++
                                           meta.count ++ meta.bitmap);
        }
    }
}
