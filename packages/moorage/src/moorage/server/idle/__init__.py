"""Idle work, followed: what browsers and Jupyter say of workspaces, and the loop that acts on what was decided.

Does not belong here: what counts as idle, and what comes next (`decide.idle`).
"""
