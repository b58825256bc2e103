"""A map's worker, one process in each of its pods: takes items from the queue, runs them, reports.

It travels as a zip file in a ConfigMap (`python3 worker.pyz`) into images that we do not know, so: standard
library only, Python 3.8 and newer, imports only from this folder. The protocol is docs/design/0005-map.md.

`orders` what it is told to do, `wire` the talk with the server, `engine` what to do next, `slots` where items run,
`child` the process in which a function stays loaded, `memory` what processes hold.
"""
