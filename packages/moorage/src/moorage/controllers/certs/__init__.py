"""The webhook's certificate and the web page's token, kept by the operator's leader; see `kube.certs`."""
