"""Maps from Python: `moorage.map(func, items)`, the decorator `moorage.mapped`, the handle `moorage.Map`.

`functions` packs the function, `local` runs maps on this machine, `client` calls the server, `maps` puts it
together. Does not belong here: the fields of the MapJob (decide.maps.mapjob), decisions (decide).
"""
