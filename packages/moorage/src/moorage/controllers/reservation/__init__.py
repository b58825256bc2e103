"""Reservations: the calendar's entries judged and reported, and backfill asked to leave in time."""
