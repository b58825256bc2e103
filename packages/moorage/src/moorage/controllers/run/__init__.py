"""Runs: start them again after disruptions, let go of pods on lost nodes."""
