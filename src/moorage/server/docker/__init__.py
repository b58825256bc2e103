"""Docker's Engine API over guarded pods."""
