from moorage.sdk.maps import ItemError as ItemError
from moorage.sdk.maps import Map as Map
from moorage.sdk.maps import MapStatus as MapStatus
from moorage.sdk.maps import amap as amap
from moorage.sdk.maps import map as map
from moorage.sdk.maps import mapped as mapped

__version__: str
