"""Subresources that do more than show one side of an object, a file for each; and reviews.

`streams` and `portforward` carry WebSockets into pods. What `/status` does is the same for every kind, so it is in
the pipeline.
"""
