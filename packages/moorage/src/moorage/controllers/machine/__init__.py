"""Machines: reservation pods, and the guests that replace them."""
