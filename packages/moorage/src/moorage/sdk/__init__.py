"""Maps from Python: `moorage.map(func, items)`, the decorator `moorage.mapped`, the handle `moorage.Map`.

`functions` packs what is called, `local` runs maps on this machine, `client` speaks to the server, `maps` puts it
together. Does not belong here: what the MapJob looks like (decide.maps.mapjob), decisions (decide).
"""
