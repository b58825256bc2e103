from moorage import errors as errors
from moorage.sdk.aio import AsyncClient as AsyncClient
from moorage.sdk.maps import ItemError as ItemError
from moorage.sdk.maps import Map as Map
from moorage.sdk.maps import MapStatus as MapStatus
from moorage.sdk.maps import amap as amap
from moorage.sdk.maps import map as map
from moorage.sdk.maps import mapped as mapped
from moorage.sdk.sync import Client as Client

__version__: str
