"""Decisions of single commands: `moor doctor`, `moor drain`, `moor lint`."""
