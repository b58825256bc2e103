"""The metrics of the webhook. They name no user and no object: all clients may read them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from moorage import __version__
from moorage.metrics.caches import FAMILIES as CACHES
from moorage.metrics.counters import Histogram
from moorage.metrics.families import Family, Measured, measured
from moorage.metrics.page import BUILD
from moorage_kube.clock import Clock

log = logging.getLogger(__name__)

REVIEW_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # the API server
# waits 5 s

REVIEWS = Family(
    name="moorage_webhook_review_duration_seconds",
    help="Time of an admission review: allowed, refused, failed (a defect), not_ready or invalid (no review)",
    kind="histogram",
    labels=("verb", "outcome"),
    series_max=15,
    bounds=REVIEW_BOUNDS,
)
EXPIRES = Family(
    name="moorage_certificate_expires_timestamp_seconds",
    help="When the certificate that the service shows ends, in Unix time",
    series_max=1,
)
FAMILIES = (REVIEWS, EXPIRES, *CACHES, BUILD)


class Review(Struct):
    """A review in progress."""

    outcome: str = "invalid"


class WebhookMeasures:
    """Metrics of the reviews since the start of the process."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._reviews = Histogram(REVIEWS)

    @contextlib.contextmanager
    def review(self, verb: str) -> Iterator[Review]:
        """Count one review; the body of the `with` sets its result."""
        began, review = self._clock.monotonic(), Review()
        try:
            yield review
        finally:
            self._reviews.observe(self._clock.monotonic() - began, verb, review.outcome)

    def read(self, certificate: Path | None) -> list[Measured]:
        """The metrics. `certificate`: a PEM file; if it cannot be read, the metric of its end is missing."""
        rows = [self._reviews.read(), measured(BUILD, [((__version__,), 1)])]
        if certificate is not None:
            from moorage_kube.certificates import certificate_end

            try:
                end = certificate_end(certificate.read_bytes())
            except (OSError, ValueError) as error:
                log.warning("cannot read the certificate", extra={"path": str(certificate), "error": str(error)})
            else:
                rows.append(measured(EXPIRES, [((), end.timestamp())]))
        return rows
