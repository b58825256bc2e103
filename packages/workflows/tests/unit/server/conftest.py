"""The server over a fake API, asked without a socket."""

from moorage_testing.site import site as site
