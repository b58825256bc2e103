"""Prometheus' own configuration, for services that run as processes on this machine.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moorage.model.manifests import ALL
from moorage_kube.resources import Obj

EVERY = "15s"


def scrape_configuration(ports: Mapping[str, int], *, token: str, folder: Path, ca: Path) -> Obj:
    """The scrape configuration. `ports`: by service; `token`: the page's; `ca`: a file with the webhook's CA.

    The rules are in `folder`, as prometheus-rules.yml.
    """
    jobs = []
    for service in ALL:
        if (port := ports.get(service.name)) is None:
            continue
        job: Obj = {
            "job_name": service.full_name,
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
            "authorization": {"credentials": token},
        }
        if service.https:
            job |= {"scheme": "https", "tls_config": {"ca_file": str(ca)}}
        jobs.append(job)
    return {
        "global": {"scrape_interval": EVERY, "evaluation_interval": EVERY},
        "rule_files": [str(folder / "prometheus-rules.yml")],
        "scrape_configs": jobs,
    }
