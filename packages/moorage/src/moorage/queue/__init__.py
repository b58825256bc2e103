"""The durable queue of maps: items, leases and results in SQL.

Belongs here: what is stored and how, and the loop that carries many workers' requests in one transaction. Does not
belong here: who gets which item and what an answer means (`decide.maps.leasing`), HTTP (`server.queue`).
"""
