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
        bool changes = meta.accumulate || (meta.deliver && meta.to_all);
        if (meta.accumulate) {
            meta.count = meta.count + 1;
            rules.apply();
            if (meta.count >= meta.needed &&
                meta.bitmap & meta.participants == meta.participants) {
                meta.deliver = true;
                meta.to_all = true;
                if (meta.job_flags & ANY_COMPLETED == 0) {
                    job_flags.write((bit<32>)meta.job, meta.job_flags | ANY_COMPLETED);
                }
            }
        }
        if (changes) {
            bit<8> complete = 0;
            if (meta.deliver) {
                complete = IS_COMPLETE;
            }
            segment_state.write(meta.slot, meta.epoch ++ hdr.seg.round ++ complete ++
                                           meta.count ++ meta.bitmap);
        }
    }
}
