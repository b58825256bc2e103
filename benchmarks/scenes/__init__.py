"""The scenes of `benchmarks/kills.py`: who works on the cluster, what is killed, what must hold."""
