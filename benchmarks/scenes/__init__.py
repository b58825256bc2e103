"""The scenes of `benchmarks/kills.py`, a module each: who works on the cluster, what is killed, what must hold then."""
