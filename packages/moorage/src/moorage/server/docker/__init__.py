"""Docker's Engine API, implemented with pods that the guard checks."""

from moorage.features import Feature

FEATURE = Feature(
    name="docker", parts="moorage.server.docker.feature:make_parts", routes="moorage.server.docker.feature:routes"
)
