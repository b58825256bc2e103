"""How requests and answers are written on the wire: encodings, patches, tables, WebSocket messages.

Does not belong here: the handling of requests (`pipeline`), and the rules of kinds (`kinds`).
"""
