"""What people and programs ask over HTTP: the REST API and the web page.

Belongs here: routes, who may ask, the shape of answers. Does not belong here: what the answers say (`decide`).
"""
