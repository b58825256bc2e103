"""Machines: reservation pods, and the guests that take their places."""
