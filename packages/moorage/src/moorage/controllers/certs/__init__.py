"""The webhook's certificate and the web page's token, renewed by the operator's leader; see `kube.certs`."""
