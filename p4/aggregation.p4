// Adds the elements of a contribution to the sum, and puts the sum into a packet that is to be sent.
// Sums are kept in the order of bytes in which they are added, so packets are turned on both ways.

control Aggregation(inout headers_t hdr, inout metadata_t meta) {
#include "operations.p4"  // written by generate.py, as arithmetic.p4 is

    action nothing() { }

    // One word of every slot.
#define WORD(I)                                             \
    register<word_t>(SLOTS) sums##I;                        \
    table operation##I {                                    \
        key = { meta.kind: exact; }                         \
        actions = { OPERATIONS nothing; }                   \
        const entries = { KINDS }                           \
        const default_action = nothing();                   \
    }
    WORD(0)
    WORD(1)
    WORD(2)
    WORD(3)
    WORD(4)
    WORD(5)  // the rest of a packet of more than one word

#define TURN(FROM, TO)                                      \
    if (meta.kind[0:0] == meta.kind[1:1]) {  /* 32 bits */  \
        TO = TURN_32(FROM);                                 \
    } else {                                                \
        TO = TURN_16(FROM);                                 \
    }

    // `a` is the sum as it is kept, `b` the contribution; the operation's outcome is in `a`.
#define AGGREGATE(I, LANES)                                 \
    if (meta.accumulate && meta.is_first) {                 \
        TURN(LANES, meta.adder.a)                           \
    } else {                                                \
        sums##I.read(meta.adder.a, meta.sum_slot);          \
        if (meta.accumulate) {                              \
            TURN(LANES, meta.adder.b)                       \
            operation##I.apply();                           \
        }                                                   \
    }                                                       \
    if (meta.accumulate) {                                  \
        sums##I.write(meta.sum_slot, meta.adder.a);         \
    }                                                       \
    if (meta.deliver) {                                     \
        TURN(meta.adder.a, LANES)                           \
    }

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
            PUT(last, 16)
            rest = of_half ++ of_quarter ++ of_eighth ++ of_four ++ of_two ++ of_one ++ of_last ++
                   16w0;
        }

        // A packet of less than a word has its rest in the first one.
        word_t first = rest;
        if (hdr.words[0].isValid()) {
            first = hdr.words[0].lanes;
        }
        AGGREGATE(0, first)
        if (!hdr.words[0].isValid()) {
            rest = first;
        } else {
            hdr.words[0].lanes = first;
#define FURTHER(I)                                          \
            if (hdr.words[I].isValid()) {                   \
                AGGREGATE(I, hdr.words[I].lanes)            \
            }
            FURTHER(1)
            FURTHER(2)
            FURTHER(3)
            FURTHER(4)
            if (meta.rest != 0) {
                AGGREGATE(5, rest)
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
            TAKE(last, 31, 16)
        }
    }
}
