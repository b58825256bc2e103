"""Reservations: judge and report the entries of the calendar, and ask backfill to leave in time."""
