"""Counters and drop reasons: one list for every world.

Packets are wire packets: a super-datagram of 44 packets counts 44. (Only `rx_overflow` counts the
kernel's datagrams, since the kernel does not tell how many packets it dropped.) These equations
account for every packet received:

    rx_packets = control + data + sum of the drops at the door (ordinary, short)
    data       = accumulated + passed_on + merged + from_parent + sum of the drops of data

A switch with ports counts frames too, again as they are on the wire, in and out:

    rx_frames  = rx_packets + forwarded + answered + sum of the drops of frames
    tx_packets + copies + own_frames + duplicated_out =
        tx_frames + sum of the drops on the way out

Impaired ports lose and duplicate frames before they are received and after they are sent: so the
number of frames that came is rx_frames + lost_in + queue_in - duplicated_in.
"""

from __future__ import annotations

from collections.abc import Mapping

from iswitch.tables import Table

COUNTED = "accumulated", "passed_on", "merged", "from_parent"  # data that was not dropped

COUNTERS: dict[str, str] = {
    "rx_packets": "packets received",
    "rx_bytes": "payload bytes received",
    "tx_packets": "packets given to a port to send",
    "tx_bytes": "payload bytes given to a port to send",
    "control": "control packets received, also those that are throttled",
    "data": "data packets received",
    "accumulated": "contributions added to a sum",
    "passed_on": "contributions without a slot, sent to the switch above as they are",
    "pushed_out": "sums sent to the switch above for a job of a higher priority needed their slots",
    "merged": "parts of a contribution of a switch below, merged before it was whole",
    "aggregates": "segments that became complete",
    "partial_aggregates": "of these, forced by FBcast before the threshold was reached",
    "retransmitted": "kept aggregates sent again to one member",
    "helps_relayed": "Help requests sent to members whose contribution is missing",
    "relays_given_up": "relayed control packets that were never acked",
    "to_parent": "sums of the members here, sent to the switch above as a contribution",
    "sums_given_up": "sums of asynchronous jobs that the switch above may not have counted when it "
    "was restarted, or when the last member here left",
    "from_parent": "aggregates that came from the switch above",
    "rx_frames": "frames received, at a switch with ports",
    "tx_frames": "frames sent",
    "forwarded": "frames between others",
    "copies": "of these, one for each port they go to",
    "answered": "ARP packets and pings for the switch's own address",
    "own_frames": "ARP packets and answers to pings from the switch",
    "duplicated_in": "packets that came twice, at an impaired port",
    "duplicated_out": "packets that left twice",
    "reordered_in": "packets that overtook others on the way in, at an impaired port",
    "reordered_out": "packets that overtook others on the way out",
    "corrupted_in": "packets that came with a bit flipped, at an impaired port",
    "corrupted_out": "packets that left with a bit flipped",
    "joins_without_memory": "Joins within --memory that were refused: the system gave none",
    "given_up": "requests, timers and turns of the loop that lacked memory; they are repeated",
    "leases_run_out": "members taken out because nothing came from them for a lease time",
    "ranks_refused": "Joins that asked for a rank which another worker has",
    "ranks_lost": "members taken out because the switch above gave their rank to another worker",
    "joins_outdone": "Joins to the switch above made anew: the process before had a larger number",
}

DROPS: dict[str, str] = {
    "ordinary": "not iSwitch traffic, in a world that forwards nothing",
    "short": "shorter than the eight bytes every packet has",
    "malformed": "data of a length or index the job's shape does not have",
    "stranger": "data from an address that contributes to no job",
    "halted": "data while the job is halted",
    "out_of_window": "data of a round outside high - 1 .. high + 1, or from before a Reset",
    "before_join": "data of a round before the first its sender takes part in",
    "duplicate": "a second contribution of one member to one segment",
    "not_owner": "a contribution to a segment that belongs to another rank",
    "ahead": "a contribution to a segment that is four versions ahead of another",
    "late": "a contribution to a segment that is already complete",
    "no_turn": "data of a round that has to wait for its job's turn with the memory",
    "repeated": "an aggregate from the switch above that has come before",
    "no_memory": "data that could not be handled for want of memory",
    "stale_join": "a Join of an older process than the last at its address, or one that seems so",
    "busy_join": "a Join while the switch above is still to answer the Leave of another job of its "
    "line, or so many Joins that no more can wait",
    "unmatched_ack": "an Ack that answers nothing outstanding",
    "bad_mac": "control of a keyed job with a wrong or missing MAC; a request is answered DENIED",
    "replayed": "a request of a keyed job whose number does not grow; answered DENIED",
    "throttled": "control packets of a source beyond its allowance per second",
    "rx_overflow": "datagrams (a super-datagram is one) for which a receive buffer had no room",
    "rx_no_memory": "frames and datagrams that nobody looked at for want of memory",
    "tx_failed": "packets the kernel did not take for sending, or for which there was no memory",
    "bad_frame": "frames too short, from a group address, or with headers that make no sense",
    "bad_checksum": "frames for the switch itself whose IP or UDP checksum is wrong",
    "unserved": "frames for the switch itself that are neither tagged, ARP nor ping",
    "spoofed": "frames that claim an address of the switch, or of a member behind another port, "
    "or hide what they claim",
    "link_local": "frames for a group that no bridge forwards (spanning tree, LLDP, PAUSE)",
    "same_port": "frames for a station behind the port they came in at",
    "too_large": "frames larger than the MTU of the port they had to leave at",
    "unresolved": "packets for a peer whose MAC is not known yet",
    "lost_in": "packets lost on the way in, at an impaired port",
    "lost_out": "packets lost on the way out, at an impaired port",
    "queue_in": "packets for which an impaired port's queue had no room, on the way in",
    "queue_out": "packets for which an impaired port's queue had no room, on the way out",
    "capture_full": "frames missing in the capture: the disk was too slow or full, or no memory",
}

DATA_DROPS = (
    "malformed",
    "stranger",
    "halted",
    "out_of_window",
    "before_join",
    "duplicate",
    "not_owner",
    "ahead",
    "late",
    "no_turn",
    "repeated",
    "no_memory",
)

FRAME_DROPS = (
    "bad_frame",
    "bad_checksum",
    "unserved",
    "spoofed",
    "link_local",
    "same_port",
)
EGRESS_DROPS = ("too_large", "unresolved", "tx_failed", "lost_out", "queue_out")


def share_added(counters: Mapping[str, int]) -> float:
    """Return the part of a switch's contributions that it added itself, 0 to 1; others went on."""
    added = counters["accumulated"]
    return added / max(1, added + counters["passed_on"])


class Counters(dict[str, int]):
    """Counts by name, every name of COUNTERS and DROPS from the start; an unknown one fails."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys((*COUNTERS, *DROPS), 0))

    def drops(self) -> dict[str, int]:
        """Return the drop reasons that occurred, with their counts."""
        return {name: self[name] for name in DROPS if self[name]}

    def table(self) -> Table:
        """Return the counts that are not zero, with their meanings, for notebooks and terminals."""
        rows = [
            (name, self[name], "drop: " * (name in DROPS) + meaning)
            for name, meaning in (COUNTERS | DROPS).items()
            if self[name]
        ]
        return Table(("counter", "count", "meaning"), rows)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __rich__(self) -> Table:
        return self.table()
