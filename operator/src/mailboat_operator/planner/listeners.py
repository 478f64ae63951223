"""The doors of a Broker: a Service for each listener and pod, and what clients are told of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mailboat_operator.crds.listeners import ListenerSpec
from mailboat_operator.crds.status import ListenerStatusEntry
from mailboat_operator.planner.actions import Step
from mailboat_operator.planner.children import ChildPlan, foreign, plan_child, plan_unwanted
from mailboat_operator.planner.conditions import (
    ADDRESS_MISSING,
    ADDRESSES_KNOWN,
    REACHABLE,
    Finding,
)
from mailboat_operator.planner.snapshot import BrokerSnapshot, Manifest
from mailboat_operator.resources.listeners import (
    LISTENER_LABEL,
    NODE_IP,
    addresses_config_map,
    in_brackets,
    pod_address,
    pod_service,
)
from mailboat_operator.resources.names import (
    broker_addresses_name,
    group_index,
    group_of,
    listener_service_name,
)


@dataclass(frozen=True, slots=True)
class ListenerPlan:
    """What has to be done for a Broker's listeners, and what is shown of them."""

    steps: tuple[Step, ...] = ()
    problems: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    entries: tuple[ListenerStatusEntry, ...] = ()
    addresses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pod -> listener -> HOST:PORT."""


def plan_listeners(snapshot: BrokerSnapshot, pods: Iterable[str]) -> ListenerPlan:
    """Compare the Services of listeners with what is there, and put their addresses together.

    Args:
        snapshot: The Broker.
        pods: Those that there should be. One that is to go keeps its Services while it is there:
            what it holds is read to the end.
    """
    broker, live = snapshot.resource, snapshot.children
    uid, listeners = broker.metadata.uid, broker.spec.listeners
    going = [name for name in live.pods if group_index(broker.name, group_of(name)) is not None]
    names = sorted({*pods, *going})
    wanted = {
        service["metadata"]["name"]: service
        for pod in names
        for listener in listeners
        if listener.has_service
        for service in [pod_service(broker, pod, listener)]
    }
    plans = [plan_child(wanted[name], live.services.get(name), uid) for name in sorted(wanted)]
    plans += unwanted_services(live.services, set(wanted), uid).values()
    addresses: dict[str, dict[str, str]] = {pod: {} for pod in names}
    missing = []
    for pod in names:
        for listener in listeners:
            service = live.services.get(listener_service_name(pod, listener.name))
            ours = service if service is not None and not foreign(service, uid) else None
            address = pod_address(broker, pod, listener, ours)
            if address is not None:
                addresses[pod][listener.name] = address
            elif listener.is_external:
                missing.append(listener_service_name(pod, listener.name))
    live_map = live.config_maps.get(broker_addresses_name(broker.name))
    if listeners:
        plans.append(plan_child(addresses_config_map(broker, addresses), live_map, uid))
    else:
        plans.append(plan_unwanted(live_map, uid, "there are no listeners"))
    return ListenerPlan(
        tuple(Step("listeners", plan.actions) for plan in plans if plan.actions),
        tuple(plan.problem for plan in plans if plan.problem),
        reachable(listeners, missing),
        tuple(_entry(live.pods, listener, addresses) for listener in listeners),
        addresses,
    )


def reachable(listeners: Iterable[ListenerSpec], missing: list[str]) -> tuple[Finding, ...]:
    """Return whether clients outside find every listener; nothing where none is for them.

    Args:
        listeners: Of the resource.
        missing: The Services without an address.
    """
    if not any(listener.is_external for listener in listeners):
        return ()
    if missing:
        text = f"no address yet: Service {', '.join(missing)}"
        return (Finding(REACHABLE, False, ADDRESS_MISSING, text),)
    return (Finding(REACHABLE, True, ADDRESSES_KNOWN, "every listener has its addresses"),)


def unwanted_services(
    services: Mapping[str, Manifest], wanted: set[str], uid: str
) -> dict[str, ChildPlan]:
    """Return by name what takes away the Services whose listener or pod is no more."""
    return {
        name: plan_unwanted(service, uid, "its listener or its pod is no more")
        for name, service in sorted(services.items())
        if name not in wanted and LISTENER_LABEL in (service["metadata"].get("labels") or {})
    }


def _entry(
    pods: Mapping[str, Manifest],
    listener: ListenerSpec,
    addresses: Mapping[str, Mapping[str, str]],
) -> ListenerStatusEntry:
    found = []
    for pod, of_pod in sorted(addresses.items()):
        address = of_pod.get(listener.name)
        if address is None:
            continue
        node_ip = ((pods.get(pod) or {}).get("status") or {}).get("hostIP")
        if NODE_IP not in address or node_ip:
            found.append(address.replace(NODE_IP, in_brackets(str(node_ip))))
    return ListenerStatusEntry(name=listener.name, addresses=tuple(found))
