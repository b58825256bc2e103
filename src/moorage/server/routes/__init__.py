"""One module of routes per resource. Each has `routes(server)`, which gives the Starlette routes."""
