"""Decisions about workflows: pure functions."""
