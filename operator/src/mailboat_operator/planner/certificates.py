"""Whether the certificates that brokers show will soon be refused, as the brokers themselves say.

What counts is what a broker shows, not what its Secret holds: a kubelet may not have brought it,
and a broker goes on with the old one where it cannot use the new.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from mailboat_operator.planner.actions import Notify, Step
from mailboat_operator.planner.children import ChildPlan, plan_child
from mailboat_operator.planner.conditions import (
    CERT_MANAGER_MISSING,
    CERTIFICATE_EXPIRED,
    CERTIFICATE_EXPIRING,
    CERTIFICATE_VALID,
    EXPIRES_SOON,
    FILES_REFUSED,
    NOT_SAID,
    NOT_VALID_YET,
    Finding,
    previous_condition,
    timestamp,
)
from mailboat_operator.planner.fitness import fresh_observation
from mailboat_operator.planner.rollout import Member
from mailboat_operator.planner.snapshot import BrokerSnapshot, LiveCertificate, Manifest

_NO_CERT_MANAGER: Final = (
    "spec.tls.issuerRef needs cert-manager, and this cluster has none: install it, or give the "
    "Secret yourself and take issuerRef out"
)
_SOON_S: Final = 14 * 86_400
# One that lives for a day is renewed within hours; those of months are, after two thirds of them.
_LAST_PART: Final = 0.2


def certificate_plan(
    wanted: Manifest | None, live: LiveCertificate | None, owner_uid: str
) -> ChildPlan:
    """Compare the Certificate that cert-manager is to follow with what is there of it.

    One that is wanted no more stays until its resource goes: the Secret is still used.
    """
    if wanted is None or live is None or not live.is_kind_known:
        return ChildPlan()
    return plan_child(wanted, live.manifest, owner_uid)


def without_cert_manager(live: LiveCertificate | None) -> tuple[Finding, ...]:
    """Return what is so where a certificate is asked for and nobody makes one."""
    if live is None or live.is_kind_known:
        return ()
    return (Finding(CERTIFICATE_EXPIRING, True, CERT_MANAGER_MISSING, _NO_CERT_MANAGER),)


@dataclass(frozen=True, slots=True)
class CertificatePlan:
    """What is told of a Broker's certificates; nothing where no port speaks TLS."""

    findings: tuple[Finding, ...] = ()
    steps: tuple[Step, ...] = ()
    awaits: str = ""
    """What no event tells of that it waits for."""


def plan_certificates(snapshot: BrokerSnapshot, members: Iterable[Member]) -> CertificatePlan:
    """Find the certificate that ends first, and tell of it once."""
    broker = snapshot.resource
    tls = broker.spec.tls
    if tls is None or tls.secret_ref is None:
        return CertificatePlan()
    if not tls.is_on and not any(listener.speaks_tls for listener in broker.spec.listeners):
        return CertificatePlan()
    unissued = _unissued(snapshot.certificate)
    shown = []
    for member in members:
        said = fresh_observation(snapshot, member.name, member.pod)
        if said is not None and said.broker is not None and said.broker.get("tls"):
            shown.append((member.name, said.broker["tls"]))
    finding = _finding(shown, tls.secret_ref.name, unissued, snapshot.now_s)
    missing = without_cert_manager(snapshot.certificate)
    finding = missing[0] if missing else finding
    before = previous_condition(broker.status, CERTIFICATE_EXPIRING)
    is_news = finding.holds is True and before.get("reason") != finding.reason
    notice = Notify("Warning", finding.reason, finding.message)
    steps = (Step("certificates", (notice,)),) if is_news else ()
    return CertificatePlan((finding,), steps, missing[0].message if missing else "")


def _unissued(live: LiveCertificate | None) -> str:
    """Return what cert-manager says of a certificate that it has not made; empty if it has."""
    if live is None or live.manifest is None:
        return ""
    for condition in (live.manifest.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "not Ready")
    return ""


def _finding(
    shown: list[tuple[str, dict[str, Any]]], secret: str, unissued: str, now_s: float
) -> Finding:
    if not shown:
        text = f"no broker says what it shows; cert-manager: {unissued}" if unissued else ""
        text = text or "no broker says what it shows"
        return Finding(CERTIFICATE_EXPIRING, None, NOT_SAID, text)
    for pod, tls in shown:
        if tls["problem"]:
            text = f"{pod} goes on with the certificate of before: {tls['problem']}"
            return Finding(CERTIFICATE_EXPIRING, True, FILES_REFUSED, f"{text} (Secret {secret})")
    pod, first = min(shown, key=lambda found: int(found[1]["valid_until_timestamp_ms"]))
    since_s, until_s = (first[f"valid_{end}_timestamp_ms"] / 1000 for end in ("from", "until"))
    left_s, lasts_s = until_s - now_s, until_s - since_s
    what = f"the certificate of Secret {secret} that {pod} shows"
    if left_s <= 0:
        text = f"{what} has expired at {timestamp(until_s)}: clients that check it are refused"
        return Finding(CERTIFICATE_EXPIRING, True, CERTIFICATE_EXPIRED, f"{text}; put a new one in")
    if now_s < since_s:
        text = f"{what} is valid from {timestamp(since_s)} on only"
        return Finding(CERTIFICATE_EXPIRING, True, NOT_VALID_YET, text)
    text = f"{what} is valid until {timestamp(until_s)}"
    if left_s < min(_SOON_S, _LAST_PART * lasts_s):
        to_do = f"cert-manager: {unissued}" if unissued else "put a new one in"
        return Finding(CERTIFICATE_EXPIRING, True, EXPIRES_SOON, f"{text}; {to_do}")
    return Finding(CERTIFICATE_EXPIRING, False, CERTIFICATE_VALID, text)
