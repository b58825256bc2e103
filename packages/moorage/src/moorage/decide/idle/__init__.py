"""Idle work: whether and why it is idle, the recipients and times of notices, and its suspension.

Belongs here: the verdict from the measurements of a piece of work (`evidence`), quiet hours (`quiet`), its states
and the legal moves between them (`states`), the next step (`plan`), the texts of notices (`notices`). Does not
belong here: the source of measurements, and the delivery of a notice.
"""
