// The switch of this project as a P4_16 program for v1model (bmv2's simple_switch). docs/p4.md.
//
//     frames --arbiter--> data --> bitmap_checker --> counter --> aggregation --> replication
//                    \--> for the switch itself: to the control plane, at the CPU port
//                     \-> ordinary traffic: forwarding

#include <core.p4>
#include <v1model.p4>

#include "sizes.p4"
#include "types.p4"
#include "arithmetic.p4"  // written by generate.py
#include "headers.p4"
#include "parser.p4"
#include "registers.p4"
#include "checksums.p4"
#include "arbiter.p4"
#include "bitmap_checker.p4"
#include "counter.p4"
#include "aggregation.p4"
#include "replication.p4"
#include "forwarding.p4"

control SwitchIngress(inout headers_t hdr, inout metadata_t meta,
                      inout standard_metadata_t standard) {
    Registers() registers;
    Arbiter() arbiter;
    BitmapChecker() bitmap_checker;
    Counter() counter_;
    Aggregation() aggregation;
    Replication() replication;
    Forwarding() forwarding;

    @name(".fates")
    counter(32, CounterType.packets) fates;

    action to_cpu(op_t reason) {
        hdr.cpu.setValid();
        hdr.cpu.op = reason;
        hdr.cpu.flags = 0;
        hdr.cpu.port = (bit<16>)meta.port;
        hdr.cpu.job = meta.job;
        hdr.cpu.rank = meta.rank;
        hdr.cpu.slot = 0;
        hdr.cpu.round = 0;
        hdr.cpu.bitmap = 0;
        hdr.cpu.high = 0;
        hdr.cpu.contributed = 0;
        hdr.cpu.contributors = 0;
        hdr.cpu.seen = 0;
        hdr.cpu.now = 0;
        hdr.cpu.number = 0;
        hdr.cpu.next = 0;
        standard.egress_spec = CPU_PORT;
    }

    apply {
        bool in_order = true;
        if (hdr.cpu.isValid() && meta.op != op_t.LOOK && meta.op != op_t.HOLD) {
            @atomic {
                bit<32> next;
                next_order.read(next, 0);
                in_order = hdr.cpu.number == next;
                if (in_order) {
                    next_order.write(0, next + 1);
                }
            }
        }
        if (!in_order) {
            mark_to_drop(standard);
        } else if (!hdr.ethernet.isValid()) {  // the control plane asks for something
            if (meta.op == op_t.SEND) {
                standard.egress_spec = meta.port;
                hdr.cpu.setInvalid();
            } else if (hdr.cpu.isValid()) {
                @atomic {
                    registers.apply(hdr, meta, standard);
                }
            } else {
                mark_to_drop(standard);
            }
        } else {
            arbiter.apply(hdr, meta, standard);
            bit<1> held = 0;
            if (meta.is_data) {
                // From the look whether data is held to the sum: between two packets of a job nothing
                // is half done. The segment's state is read by the bitmap checker, and written by the
                // counter; who came first decides whether the sum is read.
                @atomic {
                    if (meta.op == op_t.CONTROL || meta.op == op_t.RECEIVE) {
                        is_held.read(held, 0);
                    }
                    if (held == 0) {
                        if (meta.fate == fate_t.NONE) {
                            bitmap_checker.apply(hdr, meta, standard);
                            counter_.apply(hdr, meta);
                        }
                        if (meta.accumulate || meta.deliver) {
                            aggregation.apply(hdr, meta);
                        }
                    }
                }
            } else if (!meta.to_cpu) {
                forwarding.apply(hdr, meta, standard);
            }
            if (held == 1) {
                to_cpu(op_t.HELD);
            } else {
                if (meta.to_cpu) {
                    meta.fate = fate_t.TO_CPU;
                    to_cpu(op_t.CONTROL);
                } else if (meta.deliver) {
                    replication.apply(hdr, meta, standard);
                    if (meta.op != op_t.CONTRIBUTE && !meta.from_parent) {
                        fate_t sent = fate_t.RETRANSMITTED;
                        if (meta.to_parent) {
                            fates.count((bit<32>)(bit<8>)fate_t.TO_PARENT);
                            sent = fate_t.AGGREGATE;
                        } else if (meta.to_all) {
                            sent = fate_t.AGGREGATE;
                        }
                        fates.count((bit<32>)(bit<8>)sent);
                    }
                } else if (meta.is_data) {
                    mark_to_drop(standard);
                } else {
                    hdr.cpu.setInvalid();
                }
                fates.count((bit<32>)(bit<8>)meta.fate);
            }
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta,
                     inout standard_metadata_t standard) {
    Addressing() addressing;

    apply {
        addressing.apply(hdr, meta, standard);
    }
}

V1Switch(SwitchParser(), SwitchVerifyChecksum(), SwitchIngress(), SwitchEgress(),
         SwitchComputeChecksum(), SwitchDeparser()) main;
