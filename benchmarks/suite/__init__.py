"""The benchmark suite: one table of cases, one adapter a peer, one way to measure."""
