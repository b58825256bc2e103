"""Idle work: whether it is idle and why, who is told and when, and when it is suspended.

Belongs here: what measurements of a piece of work mean (`evidence`), quiet hours (`quiet`), its states and the
legal moves between them (`states`), the next step (`plan`), the words of notices (`notices`). Does not belong
here: where measurements come from, and how a notice leaves.
"""
