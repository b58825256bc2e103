"""Docker's Engine API over guarded pods."""

from moorage.features import Feature

FEATURE = Feature(
    name="docker", parts="moorage.server.docker.feature:make_parts", routes="moorage.server.docker.feature:routes"
)
