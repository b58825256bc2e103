"""How requests and answers are written on the wire: encodings, patches, tables, WebSocket messages.

Does not belong here: what a request does (`pipeline`), and what a kind is (`kinds`).
"""
