"""Checks what a report uses; pure. The operator's administrator allows images, Prometheus servers and what pods
contain, or no reports at all. A Secret is allowed by a label of its own, and for https URLs only.

An author may create SLAReports, and need not be allowed to create pods or to read Secrets. Without these checks a
report would do both for its author.
"""

from __future__ import annotations

import re

from migratory_resources.pods import ReportPod, template_fields

from migratory_operator.names import PREFIX, Object
from migratory_operator.reports.resolve import ResolvedReport, UnresolvableReport
from migratory_operator.settings import OperatorSettings

ALLOW_LABEL = f"{PREFIX}/allow-reports"
"""Label that, with the value "true", lets reports send a Secret's content to their Prometheus server."""
SCHEDULING_FIELDS = (
    "labels",
    "imagePullSecrets",
    "nodeSelector",
    "affinity",
    "tolerations",
    "priorityClassName",
    "topologySpreadConstraints",
)
"""Fields of a report's pod template that every author may use. With the others an author could run a program of their
own, or read a Secret, as somebody who may create pods can."""
# "*" never stands for a "/". In a URL it stands for no ":", "@" or ".." either, which could change host or folder.
_ANY_IN_IMAGE = r"[-a-zA-Z0-9._:@]*"
_ANY_IN_URL = r"(?:(?!\.\.)[-a-zA-Z0-9._])*"


def check_allowed(report: ResolvedReport, settings: OperatorSettings, secret: Object | None) -> None:
    """Check a report against the operator's settings: whether reports are made at all, its image, its pod template, its
    Prometheus server and its Secret.

    :param secret: the metadata of the Secret that the report names, None if it does not exist.
    :raises UnresolvableReport: something is not allowed. A missing Secret may be created yet, so it is retryable.
    """
    if not settings.reports_enabled:
        message = "this operator makes no reports; its administrator enables them: chart value reports.enabled"
        raise UnresolvableReport("ReportsDisabled", message)
    _check_image(report.spark.image, settings)
    _check_pod(report.spark.pod, settings)
    url = report.prometheus.url
    allowed = settings.allowed_prometheus
    if not any(_matches(pattern.rstrip("/"), url.rstrip("/"), _ANY_IN_URL) for pattern in allowed):
        raise _not_allowed("PrometheusNotAllowed", f"the Prometheus server {url}", allowed, "allowedPrometheus")
    if report.prometheus.secret_name is not None:
        _check_secret(report.prometheus.secret_name, url, secret)


def _check_image(image: str | None, settings: OperatorSettings) -> None:
    """Raise UnresolvableReport if there is no image for the report, or if the one that it names is not allowed."""
    if not (image or settings.spark_image):
        message = "the operator has no image for reports; set spec.spark.image, or MIGRATORY_SPARK_IMAGE"
        raise UnresolvableReport("NoImage", message)
    allowed = (settings.spark_image, *settings.allowed_images)
    if image is not None and not any(_matches(pattern, image, _ANY_IN_IMAGE) for pattern in allowed):
        raise _not_allowed("ImageNotAllowed", f"the image {image}", allowed, "allowedImages")


def _check_pod(template: ReportPod | None, settings: OperatorSettings) -> None:
    """Raise UnresolvableReport if the template has fields that only the administrator can allow, who has not done
    so."""
    if template is None or settings.reports_pod_content:
        return
    given = [name for name in template_fields(template) if name not in SCHEDULING_FIELDS]
    if given:
        message = (
            f"spark.pod may not have {', '.join(given)}; allowed: {', '.join(SCHEDULING_FIELDS)} (the operator's "
            "administrator allows the others: reports.podContent)"
        )
        raise UnresolvableReport("PodContentNotAllowed", message)


def _check_secret(name: str, url: str, secret: Object | None) -> None:
    """Raise UnresolvableReport if reports may not send this Secret to `url`: it has no https, or the Secret is missing
    or lacks ALLOW_LABEL."""
    if not url.startswith("https://"):
        message = f"the content of Secret {name} is sent over https only, and not to {url}"
        raise UnresolvableReport("InsecurePrometheus", message)
    if secret is None:
        raise UnresolvableReport("SecretNotFound", f"Secret {name} does not exist in this namespace", retryable=True)
    if secret["metadata"].get("labels", {}).get(ALLOW_LABEL) != "true":
        message = f"reports may not use Secret {name}: it has no label {ALLOW_LABEL}=true"
        raise UnresolvableReport("SecretNotAllowed", message)


def _not_allowed(reason: str, value: str, allowed: tuple[str, ...], setting: str) -> UnresolvableReport:
    """Return the error for a value that is none of those allowed. `setting` is the name of the chart's value that
    allows it."""
    known = ", ".join(filter(None, allowed)) or "none"
    return UnresolvableReport(
        reason, f"{value} is not allowed; allowed: {known} (set by the operator's administrator: reports.{setting})"
    )


def _matches(pattern: str, text: str, anything: str) -> bool:
    """Return whether the whole text matches the pattern, whose "*" stands for the regular expression `anything`."""
    return re.fullmatch(anything.join(map(re.escape, pattern.split("*"))), text) is not None
