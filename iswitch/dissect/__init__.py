"""Looking at packets: layers for scapy, and a dissector for Wireshark and tshark; docs/dissect.md.

Both are made of one table of fields (`fields`), which is made of `iswitch.core.format.wire`.
"""
