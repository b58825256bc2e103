"""Pods and pod templates: one spec with the same defaults and checks in every kind."""
