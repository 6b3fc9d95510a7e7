"""`iswitch train fedavg|fedprox` and `iswitch bench federated`."""
