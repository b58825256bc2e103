"""Runs: start them again after disruptions, and delete pods on lost nodes."""
