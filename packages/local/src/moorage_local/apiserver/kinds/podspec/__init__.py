"""Pods and pod templates: one spec with the same defaults and checks wherever it stands."""
