"""A map's worker, one process in each of its pods: takes items from the queue, runs them, reports.

It is sent as a zip file in a ConfigMap (`python3 worker.pyz`) into images that we do not know, so: standard
library only, Python 3.8 and newer, imports only from this folder. The protocol is docs/design/0005-map.md.

`orders` its configuration, `wire` the requests to the server, `engine` the next step, `slots` the places for
items, `child` the process in which a function stays loaded, `memory` the memory of processes.
"""
