"""The webhook's certificate and the web page's token, kept by the operator's leader; the work is in `kube.certs`."""
