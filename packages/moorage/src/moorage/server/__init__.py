"""The HTTP server for people and programs: the REST API and the web page.

Belongs here: routes, access to them, the shape of answers. Does not belong here: the decisions in
them (`decide`).
"""
