"""The API over HTTP: paths and methods to operations, and their results to answers.

Does not belong here: encodings (`wire`), and what an operation does (`operations`, `pipeline`).
"""
