"""Tracking of idle work: signs of use from browsers and Jupyter, and the loop that acts on decisions.

Does not belong here: the rules for idle work and the next action (`decide.idle`).
"""
