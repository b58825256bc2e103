"""Decisions about workflows, as pure functions."""
