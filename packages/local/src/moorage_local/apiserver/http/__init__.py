"""The API over HTTP: paths and methods to operations, and their results to answers.

Does not belong here: encodings (`wire`), and the operations themselves (`operations`, `pipeline`).
"""
