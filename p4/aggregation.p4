// Adds the elements of a contribution to the sum, and puts the sum into a packet that is to be sent.
// Sums are kept in the order of bytes in which they are added, so packets are turned on both ways.

// One word of every slot. Only the first has the adder for floats: their packets are no longer.
control Word(inout word_t lanes, inout metadata_t meta)(bool floats) {
    register<word_t>(SLOTS) sums;

#include "add_float32.p4"  // written by generate.py, as arithmetic.p4 is

    apply {
        word_t kept;
        sums.read(kept, meta.slot);
        if (meta.accumulate) {
            swap(lanes, lanes);
            if (meta.is_first) {
                kept = lanes;
            } else {
                if (floats && meta.is_float) {
                    meta.adder.a = kept;
                    meta.adder.b = lanes;
                    add_float32();
                    kept = meta.adder.outcome;
                } else {
                    add_int32(kept, lanes, kept);
                }
            }
            sums.write(meta.slot, kept);
        }
        swap(kept, lanes);
    }
}

control Aggregation(inout headers_t hdr, inout metadata_t meta) {
    Word(true) word0;
    Word(false) word1;
    Word(false) word2;
    Word(false) word3;
    Word(false) word4;  // the rest of a packet of more than one word

    apply {
        word_t rest = 0;  // the elements that are no whole word, first ones highest
        if (meta.rest != 0) {
#define PUT(PART, BITS)                             \
            bit<BITS> of_##PART = 0;                \
            if (hdr.PART.isValid()) {               \
                of_##PART = hdr.PART.lanes;         \
            }
            PUT(half, 1024)
            PUT(quarter, 512)
            PUT(eighth, 256)
            PUT(four, 128)
            PUT(two, 64)
            PUT(one, 32)
            rest = of_half ++ of_quarter ++ of_eighth ++ of_four ++ of_two ++ of_one ++ 32w0;
        }

        // A packet of less than a word has its rest in the first one.
        word_t first = rest;
        if (hdr.words[0].isValid()) {
            first = hdr.words[0].lanes;
        }
        word0.apply(first, meta);
        if (!hdr.words[0].isValid()) {
            rest = first;
        } else {
            hdr.words[0].lanes = first;
#define AGGREGATE(I)                                                \
            if (hdr.words[I].isValid()) {                           \
                word##I.apply(hdr.words[I].lanes, meta);            \
            }
            AGGREGATE(1)
            AGGREGATE(2)
            AGGREGATE(3)
            if (meta.rest != 0) {
                word4.apply(rest, meta);
            }
        }

#define TAKE(PART, HIGH, LOW)                                       \
        if (hdr.PART.isValid()) {                                   \
            hdr.PART.lanes = rest[HIGH:LOW];                        \
        }
        if (meta.rest != 0) {
            TAKE(half, 2047, 1024)
            TAKE(quarter, 1023, 512)
            TAKE(eighth, 511, 256)
            TAKE(four, 255, 128)
            TAKE(two, 127, 64)
            TAKE(one, 63, 32)
        }
    }
}
