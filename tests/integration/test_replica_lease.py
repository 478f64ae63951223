"""Groups of real brokers that a Lease leads: who leads, and what happens when somebody is lost.

The API server is `kube_stub`, the lease as short as it may be: 6 s.
"""

import asyncio
import copy
import errno
import json
from collections import Counter
from pathlib import Path

import pytest
from lease_nodes import GROUP, KEY, LEADERS_IP, LEASE_S, LeaseNodes, own_ip
from promises import promised
from real_time import at_most_s
from replica_nodes import same_log

from mailboat.broker.replicas import by_hand
from mailboat.broker.replicas.report import ReplicaReport
from mailboat.client import Message, Producer
from mailboat.errors import MailboatError
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.client import RemotingClient
from mailboat.replication.lease_manifest import LeaseFormatError
from mailboat.store.flush import FlushJob

# They wait for leases of 6 s, which real brokers keep.
pytestmark = pytest.mark.slow


async def _send(nodes: LeaseNodes, count: int, name: str = "m") -> None:
    async with Producer("group", namesrv=nodes.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("topic", f"{name}-{number}".encode()))


async def test_a_new_group_begins_with_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody leads before the operator has said who has the data; then the others join."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        keeper = nodes.group(1).keeper
        assert keeper is not None
        await nodes.until(lambda: "there is no Lease mq-g1" in keeper.trouble)
        assert nodes.leader() is None
        await nodes.begin()
        assert nodes.leader() == 0
        await _send(nodes, 20)
        logs = [nodes.log_bytes(ordinal) for ordinal in range(3)]
        assert logs[0] == logs[1] == logs[2] != b""
        lease = nodes.lease
        assert lease.epoch == 1
        assert lease.holder == nodes.group(0).replica.me
        assert sorted(member.ordinal for member in lease.in_sync) == [0, 1, 2]
        assert nodes.kube.most_in_flight == 1


async def _lose_leader(nodes: LeaseNodes, *, is_refused: bool) -> float:
    """Kill replica 0, which leads; return after how many seconds the next send is acknowledged."""
    loop = asyncio.get_running_loop()
    async with Producer("group", namesrv=nodes.namesrv) as producer:
        await producer.send(Message("topic", b"before"))
        began_s = loop.time()
        ending = asyncio.create_task(nodes.kill(0, is_refused=is_refused))
        await nodes.until(lambda: nodes.leader() in (1, 2))
        await nodes.send_at_last(producer, b"after")
        took_s = loop.time() - began_s
        await ending
    return took_s


async def test_clients_find_whoever_leads_at_the_groups_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name servers know the leader at brokerIP1, which all have, and others at their own."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        ports = [nodes.ports(ordinal)[0] for ordinal in range(3)]
        others = {ordinal: f"{own_ip(ordinal)}:{ports[ordinal]}" for ordinal in (1, 2)}
        leader = {0: f"{LEADERS_IP}:{ports[0]}"}
        await nodes.until(lambda: nodes.routes.broker_addresses("broker-a") == leader | others)
        await _send(nodes, 3)
        await nodes.stop(0)
        await nodes.until(lambda: nodes.leader() is not None)
        led_by = nodes.leader()
        assert led_by is not None
        # It has left the address that it had as a slave.
        del others[led_by]
        leader = {0: f"{LEADERS_IP}:{ports[led_by]}"}
        await nodes.until(lambda: nodes.routes.broker_addresses("broker-a") == leader | others)


async def test_a_killed_leader_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host refuses connections, so nobody waits for the lease; nothing answered is lost."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes, 20)
        sent = nodes.log_bytes(0)
        took_s = await _lose_leader(nodes, is_refused=True)
        print(f"first acknowledged send after a killed leader: {took_s:.2f} s")
        # Whoever is heard of again is respected for the whole lease.
        assert took_s < LEASE_S - 2
        leader = nodes.leader()
        assert leader in (1, 2)
        with promised("whoever leads has what was acknowledged"):
            assert nodes.log_bytes(leader)[: len(sent)] == sent
        assert nodes.lease.epoch == 2
        await nodes.start(0)
        await nodes.in_sync()
        assert nodes.leader() == leader
        await _send(nodes, 5, "again")
        logs = [nodes.log_bytes(ordinal) for ordinal in range(3)]
        assert logs[0] == logs[1] == logs[2]


async def test_a_silent_leader_is_given_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody says that it is dead, others wait until the lease has not changed for 6 s."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        renewed_s = _renewed_s(nodes)
        took_s = await _lose_leader(nodes, is_refused=False)
        print(f"first acknowledged send after a silent leader: {took_s:.2f} s")
        # The last renewal may be as old as the time between two.
        assert LEASE_S - renewed_s - 1.5 < took_s < LEASE_S + 3
        assert nodes.lease.epoch == 2


def _renewed_s(nodes: LeaseNodes) -> float:
    return nodes.group(0).replica.times.renew_s


async def test_without_the_api_server_the_set_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader goes on while every member of the set grants it, and stops with the first lost."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        group = nodes.group(0)
        await nodes.kube.go_away()
        began_s = asyncio.get_running_loop().time()
        number = 0
        while asyncio.get_running_loop().time() < began_s + LEASE_S + 2:
            await _send(nodes, 1, f"away-{(number := number + 1)}")
            await asyncio.sleep(0.2)
        keeper = group.keeper
        assert keeper is not None
        assert "no answer of the API server" in keeper.trouble
        assert nodes.leader() == 0
        await nodes.kill(2)
        await nodes.until(lambda: bool(group.refusal()))
        end = nodes.broker(0).store.commit_log.end
        with pytest.raises(MailboatError):
            await _send(nodes, 1, "refused")
        assert nodes.broker(0).store.commit_log.end == end
        # It cannot be dropped from a set that nobody can write.
        assert sorted(member.ordinal for member in nodes.lease.in_sync) == [0, 1, 2]
        await nodes.kube.come_back()
        await nodes.until(lambda: not group.refusal())
        await _send(nodes, 1, "back")
        assert nodes.leader() == 0
        assert nodes.lease.epoch == 1
        assert sorted(member.ordinal for member in nodes.lease.in_sync) == [0, 1]


async def test_a_leader_cut_off_from_the_api_server_leads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others see that its lease is over, and hear that it leads: they let it."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        nodes.kube.cut_off.add(nodes.token(0))
        renewals = nodes.lease.renewals
        began_s = asyncio.get_running_loop().time()
        number = 0
        while asyncio.get_running_loop().time() < began_s + LEASE_S + 3:
            await _send(nodes, 1, f"m-{(number := number + 1)}")
            await asyncio.sleep(0.2)
        assert nodes.leader() == 0
        assert (nodes.lease.epoch, nodes.lease.renewals) == (1, renewals)
        nodes.kube.cut_off.clear()
        await nodes.until(lambda: nodes.lease.renewals > renewals)
        assert nodes.lease.epoch == 1


async def test_a_deleted_lease_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leads makes it anew as another epoch, and goes on; nobody else takes it."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes, 5)
        broker = nodes.broker(0)
        tasks = _task_names()
        del nodes.kube.objects[KEY]
        await nodes.until(lambda: KEY in nodes.kube.objects)
        assert nodes.lease.epoch == 2
        assert nodes.lease.holder == nodes.group(0).replica.me
        await nodes.in_sync()
        assert nodes.broker(0) is broker
        await _send(nodes, 5, "later")
        logs = [nodes.log_bytes(ordinal) for ordinal in range(3)]
        assert logs[0] == logs[1] == logs[2]
        ends = {key: broker.store.max_offset(*key) for key in broker.store.queue_keys()}
        assert sum(ends.values()) == 10
        # Nothing that a leader does by itself is done twice.
        assert [_task_names()[name] for name in ("delayed messages", "transactions")] == [1, 1]
        assert tasks["delayed messages"] == 1


def _task_names() -> Counter[str]:
    return Counter(task.get_name() for task in asyncio.all_tasks())


async def test_a_lease_that_cannot_be_read_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has edited it: the leader's alarm says what is wrong, until it is a lease again."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        odd = copy.deepcopy(nodes.kube.objects[KEY])
        odd["metadata"]["annotations"]["mailboat.dev/in-sync"] = "all of them"
        nodes.kube.denied_verbs.add("update")
        nodes.kube.put(KEY, odd)
        keeper = nodes.group(0).keeper
        assert keeper is not None
        await nodes.until(lambda: "mailboat.dev/in-sync is 'all of them'" in keeper.alarm)
        await nodes.until(lambda: 'lacks the verb "update" for leases named' in keeper.trouble)
        await _send(nodes, 1)
        # It is not asked again and again for what it has refused.
        asked, renew_s = _puts(nodes), nodes.group(0).replica.times.renew_s
        await asyncio.sleep(renew_s)
        assert _puts(nodes) - asked <= 4
        nodes.kube.denied_verbs.clear()
        await nodes.until(lambda: _is_led_again(nodes))
        await nodes.in_sync()
        assert keeper.alarm == ""
        await _send(nodes, 5)


def _is_led_again(nodes: LeaseNodes) -> bool:
    try:
        return nodes.lease.epoch == 2
    except LeaseFormatError:
        return False


async def test_a_lease_of_the_past_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older state was put back while all lived: whoever led last writes it anew."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        old = copy.deepcopy(nodes.kube.objects[KEY])
        await _lose_leader(nodes, is_refused=True)
        leader = nodes.leader()
        await nodes.start(0)
        await nodes.in_sync()
        assert nodes.lease.epoch == 2
        nodes.kube.put(KEY, old)  # As if replica 0 still led epoch 1.
        await nodes.until(lambda: nodes.lease.epoch == 3)
        await nodes.in_sync()
        assert nodes.leader() == leader
        await _send(nodes, 5, "later")


async def test_a_pod_that_begins_anew_leads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its container was restarted: there is nobody else, and nobody to wait for."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes, 3)
        await nodes.kill(1)
        await nodes.kill(0)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await nodes.start(0)
        await nodes.until(lambda: nodes.leader() == 0)
        assert loop.time() - began_s < LEASE_S - 2
        assert nodes.lease.epoch == 2


async def test_another_pod_of_the_holder_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pod was deleted by force and may still run somewhere: it is given its whole lease."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes, 3)
        await nodes.kill(1)
        await nodes.kill(0)
        nodes.make_pod_anew(0)
        loop = asyncio.get_running_loop()
        await nodes.start(0)
        began_s = loop.time()
        await nodes.until(lambda: nodes.leader() == 0)
        assert loop.time() - began_s > LEASE_S - 1
        assert nodes.lease.epoch == 2


async def test_the_operator_lowers_how_many_there_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number counts from the next renewal on, without a start of anybody."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        await nodes.kill(1)
        await nodes.until(lambda: bool(nodes.group(0).refusal()))
        changed = copy.deepcopy(nodes.kube.objects[KEY])
        changed["metadata"]["annotations"]["mailboat.dev/min-in-sync"] = "1"
        nodes.kube.put(KEY, changed)
        await nodes.until(lambda: not nodes.group(0).refusal())
        assert nodes.group(0).min_in_sync == 1
        assert nodes.lease.epoch == 1
        await _send(nodes, 3)


async def test_a_read_without_an_answer_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the lease may not be read does not mean that there is none: no epoch begins by it."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        keeper = nodes.group(0).keeper
        assert keeper is not None
        nodes.kube.denied_verbs.add("get")
        nodes.kube.put(KEY, nodes.kube.objects[KEY])  # The leader does not know this version.
        await nodes.until(lambda: 'lacks the verb "get"' in keeper.trouble)
        refused = nodes.kube.requests.count((nodes.token(0), "PUT", KEY))
        await nodes.until(lambda: _puts(nodes) > refused + 1)
        assert nodes.lease.epoch == 1
        nodes.kube.denied_verbs.clear()
        renewals = nodes.lease.renewals
        await nodes.until(lambda: nodes.lease.renewals > renewals)
        assert nodes.lease.epoch == 1
        await _send(nodes, 1)


def _puts(nodes: LeaseNodes) -> int:
    return nodes.kube.requests.count((nodes.token(0), "PUT", KEY))


async def test_a_leader_that_ends_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one leads at once, with everything, and sends that try again go on."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes, 5)
        loop = asyncio.get_running_loop()
        async with Producer("group", namesrv=nodes.namesrv) as producer:
            await producer.send(Message("topic", b"before"))
            began_s = loop.time()
            ending = asyncio.create_task(nodes.stop(0))
            await nodes.send_at_last(producer, b"after")
            took_s = loop.time() - began_s
            await ending
        print(f"first acknowledged send after a leader was told to end: {took_s:.2f} s")
        assert took_s < at_most_s(2, LEASE_S * 0.6)
        assert nodes.lease.epoch == 2
        assert nodes.lease.holder == nodes.group(nodes.leader() or 1).replica.me
        await nodes.start(0)
        await nodes.in_sync()
        logs = [nodes.log_bytes(ordinal) for ordinal in range(3)]
        assert logs[0] == logs[1] == logs[2]


async def test_who_ends_alone_releases_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can take over: whoever of the set comes back leads without waiting for the lease."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes, 5)
        await nodes.kill(1)
        await nodes.stop(0)
        assert nodes.lease.holder is None
        assert nodes.lease.epoch == 1
        nodes.make_pod_anew(0)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await nodes.start(0)
        await nodes.until(lambda: nodes.leader() == 0)
        assert loop.time() - began_s < LEASE_S - 0.5
        await nodes.start(1)
        await nodes.in_sync()
        await _send(nodes, 5, "later")


async def test_the_report_tells_what_the_operator_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which volumes there are, who has the lease, who may lead next, and what is wrong."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        before = [_report(nodes, ordinal) for ordinal in (0, 1)]
        assert [report.ordinal for report in before] == [0, 1]
        assert [report.store_id for report in before] == [
            nodes.group(ordinal).replica.durable.store_id for ordinal in (0, 1)
        ]
        assert [(report.end, report.epoch, report.role) for report in before] == [
            (0, 0, "joining"),
            (0, 0, "joining"),
        ]
        await nodes.begin()
        await nodes.until(lambda: _report(nodes, 0).has_authority)
        reports = [_report(nodes, ordinal) for ordinal in (0, 1)]
        assert [report.role for report in reports] == ["master", "slave"]
        assert [report.has_authority for report in reports] == [True, False]
        in_sync = [f"{report.ordinal}:{report.store_id}" for report in reports]
        lease = reports[0].lease
        assert lease is not None
        assert (lease.epoch, lease.in_sync, lease.trouble) == (1, in_sync, "")
        assert lease.holder == nodes.group(0).replica.me.boot
        assert lease.holder.startswith("mq-g1-0/")
        assert (reports[0].min_in_sync, reports[0].alarm) == (2, "")
        await nodes.kube.go_away()
        await nodes.until(lambda: all(_trouble(nodes, ordinal) for ordinal in (0, 1)))
        assert "no answer of the API server to: " in _trouble(nodes, 1)


def _report(nodes: LeaseNodes, ordinal: int) -> ReplicaReport:
    replicas = nodes.broker(ordinal).replicas
    assert replicas is not None
    return replicas.report()


def _trouble(nodes: LeaseNodes, ordinal: int) -> str:
    lease = _report(nodes, ordinal).lease
    assert lease is not None
    return lease.trouble


async def test_a_person_lets_one_lead_that_lacks_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last member of the set is gone for good: the last resort writes an epoch far above."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        refusal = await by_hand.promote(nodes.group(1), accepts_loss=False)
        assert refusal == "the Lease decides who leads: hand over at the leader"
        refusal = await by_hand.promote(nodes.group(1), accepts_loss=True)
        assert refusal == "replica 0 leads, or hears from who does: stop that one first"
        await _send(nodes, 3)
        await nodes.kill(1)
        changed = copy.deepcopy(nodes.kube.objects[KEY])
        changed["metadata"]["annotations"]["mailboat.dev/min-in-sync"] = "1"
        nodes.kube.put(KEY, changed)
        await nodes.until(lambda: len(nodes.lease.in_sync) == 1 and not nodes.group(0).refusal())
        await _send(nodes, 3, "of the lost one")
        await nodes.kill(0)
        await nodes.start(1)
        await nodes.until(lambda: nodes.group(1).lease is not None)
        assert [member.ordinal for member in nodes.lease.in_sync] == [0]
        assert await by_hand.promote(nodes.group(1), accepts_loss=True) == ""
        assert (nodes.lease.epoch, nodes.lease.is_sole) == (1001, False)
        assert nodes.lease.holder == nodes.group(1).replica.me
        await _send(nodes, 3, "later")


async def test_a_person_makes_a_lost_lease_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Lease was deleted while nobody led: nobody leads before a person says who."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes, 3)
        await nodes.kill(1)
        await nodes.kill(0)
        del nodes.kube.objects[KEY]
        await nodes.start(0)
        await nodes.start(1)
        await nodes.until(lambda: "there is no Lease" in _trouble(nodes, 0))
        assert await by_hand.promote(nodes.group(0), accepts_loss=True) == ""
        await nodes.in_sync()
        assert (nodes.lease.epoch, nodes.lease.min_in_sync) == (1001, 2)
        await _send(nodes, 3, "later")


SLICE = f"endpointslices/{GROUP}-leader"
_PUT = ("PUT", SLICE)


def _make_slice(nodes: LeaseNodes, epoch: str = "0") -> None:
    """Do what the operator does with a new group, and with an EndpointSlice that was deleted."""
    metadata = {"name": f"{GROUP}-leader", "annotations": {"mailboat.dev/epoch": epoch}}
    names = {"remoting": 10911, "remoting-fast": 10909, "http": 8080}
    ports = [{"name": name, "port": port, "protocol": "TCP"} for name, port in names.items()]
    nodes.kube.put(
        SLICE,
        {"metadata": metadata, "addressType": "IPv4", "endpoints": [], "ports": ports},
    )


def _led_to(nodes: LeaseNodes) -> tuple[str, list[str]]:
    """Return since which epoch the group's Service leads where."""
    found = nodes.kube.objects[SLICE]
    addresses = [address for item in found["endpoints"] for address in item["addresses"]]
    return found["metadata"]["annotations"]["mailboat.dev/epoch"], addresses


def _leaders_port(nodes: LeaseNodes) -> int:
    """Return to which port of the leader clients come by the group's Service."""
    ports = {port["name"]: port["port"] for port in nodes.kube.objects[SLICE]["ports"]}
    assert ports["remoting"] == ports["remoting-fast"]
    assert ports["http"] == 8080
    return int(ports["remoting"])


async def _answers(ip: str, port: int) -> bool:
    """Tell whether a broker there answers a question."""
    client = RemotingClient()
    try:
        question = RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO)
        return (await client.request(f"{ip}:{port}", question, 5)).code >= 0
    finally:
        await client.close()


async def test_the_service_leads_to_whoever_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader writes its own address into the EndpointSlice, and nobody else does."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        await nodes.until(lambda: "answered 404 to: get endpointslices" in _led_trouble(nodes))
        _make_slice(nodes)
        await nodes.until(lambda: _led_to(nodes) == ("1", [own_ip(0)]))
        first = _leaders_port(nodes)
        endpoint = nodes.kube.objects[SLICE]["endpoints"][0]
        assert endpoint["conditions"]["ready"]
        assert endpoint["targetRef"]["name"] == "mq-g1-0"
        await nodes.until(lambda: _led_trouble(nodes) == "")
        await nodes.kill(0)
        await nodes.until(lambda: nodes.leader() is not None)
        leader = nodes.leader()
        assert leader is not None
        await nodes.until(lambda: _led_to(nodes) == ("2", [own_ip(leader)]))
        # Who is led to the former leader for a moment is not taken by it, if it is back by then.
        await nodes.start(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(own_ip(0), first)
        assert await _answers(own_ip(leader), _leaders_port(nodes))
        # Somebody has changed it: it is looked at now and then.
        _make_slice(nodes, "2")
        await nodes.until(lambda: _led_to(nodes) == ("2", [own_ip(leader)]))
        assert _leaders_port(nodes) != 10911
        writers = {token for token, method, key in nodes.kube.requests if (method, key) == _PUT}
        assert writers == {nodes.token(0), nodes.token(leader)}


async def test_who_was_replaced_does_not_lead_clients_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a later epoch is written, a leader that does not know of it yet changes nothing."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        # Else it would know that there is no later one.
        nodes.kube.denied_verbs.add("update")
        _make_slice(nodes, "7")
        gets = (nodes.token(0), "GET", SLICE)
        await nodes.until(lambda: gets in nodes.kube.requests)
        replicas = nodes.broker(0).replicas
        assert replicas is not None
        asked = nodes.kube.requests.count(gets)
        replicas.note_lead()
        await nodes.until(lambda: nodes.kube.requests.count(gets) > asked)
        await _send(nodes, 1)
        assert _led_to(nodes) == ("7", [])


def _led_trouble(nodes: LeaseNodes) -> str:
    lease = _report(nodes, 0).lease
    assert lease is not None
    return lease.endpoints_trouble


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_leader_whose_disk_fails_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    """It cannot store anything more: another one leads, and has what was answered."""
    async with LeaseNodes(tmp_path, 3, monkeypatch, {"flushDiskType": flush}) as nodes:
        await nodes.begin()
        await _send(nodes, 5)
        sent = nodes.log_bytes(0)
        broker = nodes.broker(0)
        run = FlushJob.run

        def run_or_fail(job: FlushJob) -> None:
            if not broker.deposed.is_set() and any(
                "replica-0" in segment.path for segment in job.segments
            ):
                raise OSError(errno.EIO, "the disk fails")
            run(job)

        monkeypatch.setattr(FlushJob, "run", run_or_fail)
        loop = asyncio.get_running_loop()
        async with Producer("group", namesrv=nodes.namesrv) as producer:
            await nodes.send_at_last(producer, b"it is flushed, or another one has it")
            await nodes.until(lambda: nodes.leader() in (1, 2))
            began_s = loop.time()
            await nodes.send_at_last(producer, b"later")
        print(f"first send after that, {flush}: {loop.time() - began_s:.2f} s")
        leader = nodes.leader()
        assert leader in (1, 2)
        with promised("whoever leads has what was acknowledged"):
            assert nodes.log_bytes(leader)[: len(sent)] == sent
        await nodes.until(lambda: nodes.has_begun_anew(0, broker))
        await nodes.in_sync()
        assert nodes.leader() == leader


def _damage_end(nodes: LeaseNodes, root: Path, ordinal: int, *, end: int) -> None:
    """Make the newest byte below a physical offset another one, on the disk of a stopped replica.

    What it knew to be confirmed, and flushed, is a second old.
    """
    folder = root / f"replica-{ordinal}"
    path = max(path for path in (folder / "commitlog").iterdir() if path.name.isdigit())
    data = bytearray(path.read_bytes())
    data[end - int(path.name) - 1] ^= 0x10
    path.write_bytes(data)
    (folder / "mailboat" / "progress.json").unlink()
    file = folder / "mailboat" / "replica.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"confirmed": 0}))


async def test_who_has_lost_its_end_is_no_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had acknowledged what is damaged now: it does not lead before it has followed."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes, 5)
        good = nodes.log_bytes(1)
        before = nodes.group(1).replica.me.store_id
        await nodes.kill(0)
        await nodes.kill(1)
        _damage_end(nodes, tmp_path, 1, end=len(good))
        await nodes.start(1)
        assert nodes.group(1).replica.end < len(good)
        after = nodes.group(1).replica.me.store_id
        assert after != before
        await asyncio.sleep(LEASE_S + 1)  # It is given every chance.
        assert nodes.leader() is None
        await nodes.start(0)
        await nodes.in_sync()
        assert nodes.leader() == 0
        assert same_log(nodes.log_bytes(1), nodes.log_bytes(0))
        assert after in {member.store_id for member in nodes.lease.in_sync}
        await _send(nodes, 5, "later")


async def test_without_confirmation_authority_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an ASYNC_MASTER that died others may not know that: nothing is stored for a lease."""
    async with LeaseNodes(tmp_path, 3, monkeypatch, master_role="ASYNC_MASTER") as nodes:
        await nodes.begin()
        await _send(nodes, 20)
        await nodes.until(lambda: len({nodes.log_bytes(ordinal) for ordinal in range(3)}) == 1)
        renewed_s = _renewed_s(nodes)
        took_s = await _lose_leader(nodes, is_refused=True)
        print(f"first acknowledged send after a killed ASYNC_MASTER: {took_s:.2f} s")
        assert LEASE_S - renewed_s - 1 < took_s < LEASE_S + 3
        await nodes.start(0)
        await nodes.in_sync()
        assert nodes.leader() in (1, 2)
