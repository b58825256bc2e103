"""The durable queue of maps: items, leases and results in SQL.

Belongs here: the stored data, and the loop that carries many workers' requests in one transaction. Does not
belong here: the choice of items and the meaning of answers (`decide.maps.leasing`), HTTP (`server.queue`).
"""
