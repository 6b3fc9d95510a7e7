"""What `iswitch ctl` asks of a switch, and the words for what the switch answers."""
