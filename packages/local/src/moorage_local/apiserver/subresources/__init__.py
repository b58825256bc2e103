"""Subresources that do more than show a part of an object, a file for each; and reviews.

`streams` and `portforward` carry WebSockets into pods. `/status` works the same way for every kind, so it is in
the pipeline.
"""
