"""Runs: the Job of a run, its state, restarts, memory kills and usual duration."""
