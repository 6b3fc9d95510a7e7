"""The switch on Ethernet: frames taken apart, guarded, bridged, cut and issued."""
