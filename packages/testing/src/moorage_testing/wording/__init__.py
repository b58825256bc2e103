"""Count what a reader must read twice: odd phrases, long sentences, long functions without a comment.

`python -m moorage_testing.wording` prints a count for each kind of text and fails above its limit in
`limits.json`. This package holds the patterns and the readers of texts. CONTRIBUTING, "Words", says how to write.
"""
