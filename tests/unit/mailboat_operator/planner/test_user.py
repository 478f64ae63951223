"""Users: files for brokers, Secrets for clients, rotation without a gap, and a sure end."""

import base64
import itertools
import json
from typing import Any

import pytest
from operator_samples import BROKER_SPEC, LOCKED, metadata, sample_broker, sample_name_server

from mailboat.security.access import Action, Need, ResourceKind
from mailboat.security.quotas import QUOTA_NAMES, quotas_body
from mailboat.security.user_files import UserFolder
from mailboat.security.user_records import UserRecord, decode_user
from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator.crds.user import parse_user
from mailboat_operator.planner.actions import Notify, Plan, PutSecret, SetFinalizers
from mailboat_operator.planner.snapshot import UserSnapshot
from mailboat_operator.planner.user import FINALIZER, LOOK_S, RETRY_S, TAKEN_RETRY_S, plan_user

BROKER_USERS = "mailboat-broker-users-orders"
NS_USERS = "mailboat-name-server-users-ns"
OWN = "till-mailboat-user"
PUB = [{"resource": {"type": "Topic", "name": "payments"}, "actions": ["Pub"]}]
T0_MS = 1_767_323_045_000
"""2026-01-02T03:04:05Z."""


class World:
    """A User, its Secrets, and brokers that read theirs when the test says so."""

    def __init__(self, **spec: Any) -> None:
        """Begin with the User alone."""
        self.meta = metadata("till")
        self.spec: dict[str, Any] = {"brokerRef": "orders", **spec}
        self.status: dict[str, Any] = {}
        self.broker: Any = sample_broker(**LOCKED)
        self.name_server: Any = None
        self.secrets: dict[str, dict[str, Any]] = {}
        self.brokers: dict[str, UserRecord | None] = {"orders-g0-0": None, "orders-g1-0": None}
        self.name_servers: dict[str, UserRecord | None] = {"ns-0": None, "ns-1": None}
        self.silent: set[str] = set()
        self.rivals: tuple[dict[str, Any], ...] = ()
        self.clock = VirtualTime()
        self.clock.set_wall(T0_MS)
        self.events: list[Notify] = []
        self.released = False
        self._chances = map("planted-secret-{}".format, itertools.count(1))

    def value(self, secret: str, key: str) -> str | None:
        """Return what a key of a Secret holds."""
        text = self.secrets.get(secret, {}).get("data", {}).get(key)
        return None if text is None else base64.b64decode(text).decode()

    def put(self, secret: str, values: dict[str, str]) -> None:
        """Let somebody make a Secret."""
        data = {key: base64.b64encode(text.encode()).decode() for key, text in values.items()}
        self.secrets[secret] = {"metadata": {"name": secret, "namespace": "shop"}, "data": data}

    def file(self) -> dict[str, Any]:
        """Return the user's file."""
        text = self.value(BROKER_USERS, "till.json")
        assert text is not None
        found: dict[str, Any] = json.loads(text)
        return found

    def snapshot(self) -> UserSnapshot:
        """Return what the planner sees."""
        given = self.spec.get("authentication", {}).get("secretRef", {}).get("name")
        manifest = {"metadata": self.meta, "spec": self.spec, "status": self.status}
        return UserSnapshot(
            resource=parse_user(manifest),
            broker=self.broker,
            name_server=self.name_server,
            broker_users=self.secrets.get(BROKER_USERS),
            name_server_users=self.secrets.get(
                f"mailboat-name-server-users-{self.name_server.name}"
            )
            if self.name_server
            else None,
            own_secret=None if given else self.secrets.get(OWN),
            given_secret=self.secrets.get(given) if given else None,
            chance=next(self._chances),
            servers=tuple(self.brokers),
            name_server_pods=tuple(self.name_servers) if self.name_server else (),
            said={
                pod: None if record is None else record.revision
                for pod, record in {**self.brokers, **self.name_servers}.items()
                if pod not in self.silent
            },
            now_s=self.clock.time(),
            rivals=self.rivals,
            other_users=tuple(
                secret
                for name, secret in self.secrets.items()
                if name.startswith("mailboat-name-server-users-")
                and not (self.name_server and name.endswith(f"-{self.name_server.name}"))
            ),
        )

    def turn(self) -> Plan:
        """Plan once, and carry it out."""
        plan = plan_user(self.snapshot())
        for step in plan.steps:
            for action in step.actions:
                match action:
                    case PutSecret():
                        self._put(action)
                    case SetFinalizers():
                        self.meta["finalizers"] = list(action.finalizers)
                        self.released = not action.finalizers
                    case Notify():
                        self.events.append(action)
                    case other:
                        raise AssertionError(other)
        self.status = plan.status
        return plan

    def _put(self, action: PutSecret) -> None:
        name = action.manifest["metadata"]["name"]
        secret = self.secrets.setdefault(name, {**action.manifest, "data": {}})
        for key, value in action.values.items():
            if value is None:
                secret["data"].pop(key, None)
            else:
                secret["data"][key] = base64.b64encode(value.encode()).decode()

    def read(self, *pods: str) -> None:
        """Let servers read what is mounted, by their own code."""
        name_server = self.name_server and f"mailboat-name-server-users-{self.name_server.name}"
        for servers, text in (
            (self.brokers, self.value(BROKER_USERS, "till.json")),
            (self.name_servers, self.value(name_server or "", "orders.till.json")),
        ):
            for pod in set(pods or servers) & servers.keys():
                servers[pod] = None if text is None else decode_user(text.encode())

    def settle(self) -> Plan:
        """Let all work until nothing changes."""
        for _ in range(20):
            before = self._state()
            plan = self.turn()
            self.read()
            if self._state() == before:
                return plan
        raise AssertionError("no rest")

    def _state(self) -> str:
        servers = {**self.brokers, **self.name_servers}
        counts = {pod: record and record.revision for pod, record in servers.items()}
        return json.dumps([self.secrets, self.meta, self.status, counts], sort_keys=True)

    def condition(self, name: str) -> tuple[str, str]:
        """Return status and reason of a condition."""
        (found,) = [item for item in self.status["conditions"] if item["type"] == name]
        return found["status"], found["reason"]

    def secrets_taken(self) -> list[list[str]]:
        """Return what each server takes as secret keys."""
        return [
            [secret.decode() for secret in record.user(self.clock.wall_ms()).secrets]
            for record in [*self.brokers.values(), *self.name_servers.values()]
            if record is not None
        ]


def test_brokers_know_a_user_before_its_clients_have_a_secret() -> None:
    """File, then what brokers say, then the clients' Secret; a client is never refused for that."""
    world = World(acls=PUB)
    plan = world.turn()
    assert world.meta["finalizers"] == [FINALIZER]
    assert OWN not in world.secrets
    assert world.condition("SecretReady") == ("False", "SecretPending")
    assert plan.again_after_s == RETRY_S
    world.read("orders-g0-0")
    world.turn()
    assert OWN not in world.secrets
    assert "orders-g1-0 does not take it so yet" in str(world.status)
    assert world.status["applied"] == "1/2"
    world.read()
    world.turn()
    assert world.value(OWN, "secretKey") == "planted-secret-1" == world.file()["password"]
    world.settle()
    assert world.condition("Ready") == ("True", "UserReady")
    assert world.status["appliedBrokers"] == ["orders-g0-0", "orders-g1-0"]
    assert [event.reason for event in world.events] == ["UserApplied"]


def test_at_rest_nothing_is_written() -> None:
    """However often one looks."""
    world = World(acls=PUB)
    world.settle()
    plan = world.turn()
    assert (plan.steps, plan.again_after_s) == ((), None)


def test_what_clients_get_is_what_they_read() -> None:
    """Keys of their own, and the file of mqadmin."""
    world = World(authentication={"accessKey": "cash.desk@till"})
    world.settle()
    assert world.value(OWN, "accessKey") == "cash.desk@till"
    assert world.value(OWN, "namesrvAddr") == "ns.example:9876"
    assert world.value(OWN, "tools.yml") == (
        'accessKey: "cash.desk@till"\nsecretKey: "planted-secret-1"\n'
    )
    (owner,) = world.secrets[OWN]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("User", "uid-of-till")
    (owner,) = world.secrets[BROKER_USERS]["metadata"]["ownerReferences"]
    assert owner["kind"] == "Broker"


def test_no_secret_is_anywhere_but_in_secrets() -> None:
    """Not in the status, an event, or what a plan looks like in a log."""
    world = World(acls=PUB)
    plans = [world.turn() for _ in range(2)]
    world.read()
    plans += [world.turn() for _ in range(2)]
    shown = f"{plans} {world.status} {world.events} {world.snapshot()}"
    assert "planted-secret" not in shown
    assert base64.b64encode(b"planted-secret-1").decode() not in shown


@pytest.mark.parametrize(
    ("acl", "resource"),
    [
        ({"type": "Topic", "name": "a"}, "Topic:a"),
        ({"type": "Group", "name": "a", "pattern": "Prefix"}, "Group:a*"),
        ({"type": "Cluster", "pattern": "Any"}, "Cluster:*"),
    ],
)
def test_rules_are_spelled_as_brokers_read_them(acl, resource) -> None:
    """Resource, actions, addresses and decision."""
    rule = {
        "resource": acl,
        "actions": ["Pub", "Sub"],
        "sourceCIDRs": ["10.0.0.0/8"],
        "decision": "Deny",
    }
    world = World(acls=[rule], type="Super", disabled=True)
    world.settle()
    file = world.file()
    assert file["policies"] == [
        {
            "entries": [
                {
                    "resource": resource,
                    "actions": ["Pub", "Sub"],
                    "sourceIps": ["10.0.0.0/8"],
                    "decision": "Deny",
                }
            ]
        }
    ]
    assert (file["userType"], file["userStatus"]) == ("Super", "disable")
    record = world.brokers["orders-g0-0"]
    assert record is not None
    assert (record.is_super, record.is_enabled) == (True, False)


def test_a_change_of_rules_counts_once_every_broker_says_so() -> None:
    """The secret key stays, the revision does not."""
    world = World(acls=PUB)
    world.settle()
    before = world.file()
    world.spec["acls"] = [{"resource": {"type": "Topic", "name": "b"}, "actions": ["Sub"]}]
    world.meta["generation"] = 2
    world.turn()
    world.turn()
    assert world.condition("Applied") == ("False", "UserPending")
    after = world.file()
    assert after["password"] == before["password"]
    assert after["revision"] != before["revision"]
    world.settle()
    assert world.condition("Applied") == ("True", "Applied")
    assert world.status["observedGeneration"] == 2
    record = world.brokers["orders-g1-0"]
    assert record is not None
    need = Need(ResourceKind.TOPIC, "payments", frozenset({Action.PUB}))
    assert record.rules.refusal(need, "10.0.0.1") is not None


def test_rotation_has_no_moment_in_which_clients_are_refused() -> None:
    """What stands in the clients' Secret is taken by every broker at any time, and so is what
    stood there before, until the overlap ends."""
    world = World(authentication={"overlap": "1h"})
    world.settle()
    old = world.value(OWN, "secretKey")
    world.spec["authentication"]["rotate"] = "2026-01"
    for pods in [(), ("orders-g0-0",), ("orders-g0-0", "orders-g1-0"), (), ("orders-g1-0",)] * 3:
        world.turn()
        assert old is not None
        for taken in world.secrets_taken():
            assert world.value(OWN, "secretKey") in taken
            assert old in taken
        if pods:
            world.read(*pods)
    world.settle()
    new = world.value(OWN, "secretKey")
    assert new not in (None, old)
    assert world.status["previousSecretUntil"] == "2026-01-02T04:04:05Z"
    assert world.secrets_taken() == [[new, old], [new, old]]
    assert "SecretRotated" in [event.reason for event in world.events]

    plan = world.turn()
    assert plan.again_after_s == 3600
    world.clock.advance(3600)
    assert world.secrets_taken() == [[new], [new]]
    world.settle()
    assert "previousPassword" not in world.file()
    assert "previousSecretUntil" not in world.status


def test_name_servers_know_a_secret_key_before_clients_have_it() -> None:
    """Kubelets bring a Secret to each pod in its own time: who asks a name server that is behind
    would be refused, although every broker takes the key."""
    world = World()
    world.name_server = sample_name_server(authentication=LOCKED["authentication"])
    world.turn()
    world.read(*world.brokers, "ns-0")
    world.turn()
    assert OWN not in world.secrets
    assert "ns-1 does not take it so yet" in str(world.status)
    assert world.status["applied"] == "2/2"
    world.settle()
    old = world.value(OWN, "secretKey")
    world.spec["authentication"] = {"rotate": "a"}
    for pods in [(), ("ns-0", *world.brokers), ("ns-0",), ("orders-g0-0",)] * 2:
        world.turn()
        if pods:
            world.read(*pods)
        assert world.value(OWN, "secretKey") == old
    world.silent = {"ns-1"}
    world.read()
    assert world.turn().again_after_s == RETRY_S
    assert world.value(OWN, "secretKey") == old
    assert "ns-1 does not answer" in str(world.status)
    world.silent = set()
    world.settle()
    new = world.value(OWN, "secretKey")
    assert new != old
    assert world.secrets_taken() == [[new, old]] * 4


def test_name_servers_that_let_everybody_in_are_not_asked() -> None:
    """They have no file of a user."""
    world = World()
    world.name_server = sample_name_server()
    world.settle()
    assert world.condition("Ready") == ("True", "UserReady")
    assert set(world.name_servers.values()) == {None}


def test_a_second_rotation_waits_for_the_first() -> None:
    """Else the secret key that clients have would be the third, and be dropped."""
    world = World()
    world.settle()
    old = world.value(OWN, "secretKey")
    world.spec["authentication"] = {"rotate": "a"}
    world.turn()
    first = world.file()["password"]
    world.spec["authentication"] = {"rotate": "b"}
    world.turn()
    assert world.file()["password"] == first
    assert world.file()["previousPassword"] == {"password": old}
    world.settle()
    assert world.value(OWN, "secretKey") not in (old, first)
    assert world.value(BROKER_USERS, "till.rotated") == "b"


def test_without_overlap_the_old_one_goes_with_the_new_one_there() -> None:
    """Still not before."""
    world = World(authentication={"overlap": "0s"})
    world.settle()
    old = world.value(OWN, "secretKey")
    world.spec["authentication"]["rotate"] = "x"
    world.turn()
    assert world.file()["previousPassword"] == {"password": old}
    world.settle()
    assert "previousPassword" not in world.file()


def test_a_clients_secret_that_somebody_deletes_comes_back() -> None:
    """With the same key, as the file remembers it."""
    world = World()
    world.settle()
    old = world.value(OWN, "secretKey")
    del world.secrets[OWN]
    world.settle()
    assert world.value(OWN, "secretKey") == old


@pytest.mark.parametrize(
    "previous",
    ["x", [], {}, {"password": 1}, *({"password": "x", "validUntil": it} for it in (1, "soon"))],
)
def test_a_file_that_somebody_spoils_is_made_again(previous: object) -> None:
    """And is no error of the program at each turn."""
    world = World()
    world.settle()
    before = world.file()
    text = json.dumps(before | {"previousPassword": previous}).encode()
    world.secrets[BROKER_USERS]["data"]["till.json"] = base64.b64encode(text).decode()
    world.turn()
    world.settle()
    assert world.file() == before
    assert world.value(OWN, "secretKey") == before["password"]


@pytest.mark.parametrize("is_broker_new", [False, True])
def test_a_file_that_is_lost_takes_no_secret_key_from_clients(is_broker_new) -> None:
    """With the Secret of all users, as somebody deletes it, or with the Broker."""
    world = World()
    world.settle()
    old = world.value(OWN, "secretKey")
    del world.secrets[BROKER_USERS]
    if is_broker_new:
        broker = world.broker
        world.broker = None
        world.settle()
        world.broker = broker
    world.settle()
    assert world.secrets_taken() == [[old], [old]]
    assert world.value(OWN, "secretKey") == old


def test_a_given_secret_key_is_handed_to_nobody() -> None:
    """Who may read what the operator made of his User does not get what another Secret holds."""
    world = World()
    world.put("mine", {"k": "of-the-data-base"})
    world.spec["authentication"] = {"secretRef": {"name": "mine", "key": "k"}, "overlap": "1h"}
    world.settle()
    assert world.secrets_taken() == [["of-the-data-base"]] * 2
    world.spec["authentication"] = {"overlap": "1h"}
    world.settle()
    made = world.value(OWN, "secretKey")
    assert made is not None
    assert made != "of-the-data-base"
    assert world.secrets_taken() == [[made, "of-the-data-base"]] * 2
    assert world.value(BROKER_USERS, "till.rotated") == ""
    world.clock.advance(3600)
    world.settle()
    assert world.secrets_taken() == [[made]] * 2


def test_a_given_secret_key_is_followed() -> None:
    """Nothing is made for it, and its change has the overlap too."""
    world = World(authentication={"secretRef": {"name": "mine", "key": "k"}, "overlap": "30m"})
    plan = world.turn()
    assert world.condition("SecretReady") == ("False", "SecretMissing")
    assert plan.again_after_s == LOOK_S
    assert BROKER_USERS not in world.secrets
    world.put("mine", {"k": "first-secret\n"})
    world.settle()
    assert world.file()["password"] == "first-secret"
    assert world.status["secretName"] == "mine"
    assert world.condition("Ready") == ("True", "UserReady")
    world.put("mine", {"k": "second-secret"})
    world.settle()
    assert world.secrets_taken() == [["second-secret", "first-secret"]] * 2
    assert world.file()["previousPassword"]["validUntil"] == "2026-01-02T03:34:05Z"
    assert OWN not in world.secrets
    world.put("mine", {"k": "   "})
    world.turn()
    assert world.condition("SecretReady") == ("False", "SecretInvalid")
    assert world.file()["password"] == "second-secret"


def test_name_servers_that_want_users_get_the_same_file() -> None:
    """The others do not."""
    world = World()
    world.broker = sample_broker(**(BROKER_SPEC | {"nameServers": {"ref": "ns"}} | LOCKED))
    world.name_server = sample_name_server()
    world.settle()
    assert NS_USERS not in world.secrets
    world.name_server = sample_name_server(authentication=LOCKED["authentication"])
    world.settle()
    text = world.value(NS_USERS, "orders.till.json")
    assert text == world.value(BROKER_USERS, "till.json")
    assert world.value(OWN, "namesrvAddr") == (
        "ns-0.ns-nodes.shop.svc:9876;ns-1.ns-nodes.shop.svc:9876"
    )
    world.meta["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    world.turn()
    assert world.secrets[NS_USERS]["data"] == {}


@pytest.mark.parametrize("case", ["another", "addresses", "broker gone", "broker gone, end"])
def test_name_servers_of_before_know_the_user_no_more(case) -> None:
    """Whom they let in once could do everything there for ever, if he was a Super one."""
    world = World(type="Super")
    world.broker = sample_broker(**(BROKER_SPEC | {"nameServers": {"ref": "ns"}} | LOCKED))
    world.name_server = sample_name_server(authentication=LOCKED["authentication"])
    world.settle()
    world.put("mailboat-name-server-users-not-ours", {"orders.till.json": "theirs"})
    text = world.value(BROKER_USERS, "till.json")
    if case == "another":
        world.name_server = sample_name_server("ns2", authentication=LOCKED["authentication"])
    elif case == "addresses":
        world.name_server = None
    else:
        world.broker = world.name_server = None
        if case.endswith("end"):
            world.meta["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    world.turn()
    assert world.value(NS_USERS, "orders.till.json") is None
    assert world.value("mailboat-name-server-users-not-ours", "orders.till.json") == "theirs"
    if case == "another":
        assert world.value("mailboat-name-server-users-ns2", "orders.till.json") == text
    if case.startswith("broker gone"):
        # Not in the turn in which it may fail.
        assert not world.released
        world.turn()
        assert world.released


@pytest.mark.parametrize("other", ["a.x.json", "z.x.json"])
@pytest.mark.parametrize("is_same", [True, False])
@pytest.mark.parametrize("is_late", [True, False])
def test_a_name_server_has_one_file_of_an_access_key(other, is_same, is_late, tmp_path) -> None:
    """With two it does not start, whichever Brokers their Users are of."""
    given = {"accessKey": "till", "secretRef": {"name": "mine", "key": "k"}}
    world = World(authentication=given)
    world.put("mine", {"k": "shared-secret"})
    world.broker = sample_broker(**(BROKER_SPEC | {"nameServers": {"ref": "ns"}} | LOCKED))
    world.name_server = sample_name_server(authentication=LOCKED["authentication"])
    text = json.dumps({"username": "till", "password": "shared-secret" if is_same else "another"})
    data = {other: base64.b64encode(text.encode()).decode()}
    if is_late:
        world.settle()
        world.secrets[NS_USERS]["data"] |= data
    else:
        owner = {"kind": "NameServer", "name": "ns", "uid": "uid-of-ns", "controller": True}
        meta = {"name": NS_USERS, "namespace": "shop", "ownerReferences": [owner]}
        world.secrets[NS_USERS] = {"metadata": meta, "data": data}
    plan = world.settle()
    stays = is_late and other == "z.x.json"
    assert (world.value(NS_USERS, "orders.till.json") is not None) == stays
    if not stays:
        folder = UserFolder(str(tmp_path))
        for key in world.secrets[NS_USERS]["data"]:
            (tmp_path / key).write_text(str(world.value(NS_USERS, key)), encoding="ascii")
        folder.look()
        assert (folder.problems, list(folder.records)) == ([], ["till"])
        assert plan.again_after_s == TAKEN_RETRY_S
    assert world.condition("Ready") == (
        ("True", "UserReady") if is_same or stays else ("False", "NameTaken")
    )
    # Once the other one goes, this one takes its place.
    world.secrets[NS_USERS]["data"].pop(other)
    world.settle()
    assert world.value(NS_USERS, "orders.till.json") is not None
    assert world.condition("Ready") == ("True", "UserReady")


def test_an_end_waits_for_every_broker() -> None:
    """The finalizer goes when each has said that it knows nobody of the name; not a turn before."""
    world = World()
    world.settle()
    world.meta["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    world.turn()
    assert world.secrets[BROKER_USERS]["data"] == {}
    world.read("orders-g0-0")
    world.silent.add("orders-g0-0")
    world.turn()
    assert not world.released
    message = str(world.status)
    assert "orders-g0-0 does not answer" in message
    assert "orders-g1-0 still knows it" in message
    world.silent.clear()
    world.turn()
    assert not world.released
    world.read()
    world.turn()
    assert world.released


def test_another_user_of_the_name_does_not_hold_up_the_end() -> None:
    """Such as one that was made by a request, or by a User of the same name that came after."""
    world = World()
    world.settle()
    world.meta["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    world.turn()
    other = decode_user(b'{"username":"till","password":"x","revision":"uid-of-another.1"}')
    world.brokers = dict.fromkeys(world.brokers, other)
    world.turn()
    assert world.released


@pytest.mark.parametrize("broker", [None, sample_broker()])
def test_an_end_waits_for_nobody_where_nobody_asks_for_users(broker) -> None:
    """The Broker is gone, or lets everybody in."""
    world = World()
    world.settle()
    world.meta["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    world.broker = broker
    world.silent.update(world.brokers)
    world.turn()
    world.turn()
    assert world.released


def test_an_older_user_keeps_its_access_key() -> None:
    """The younger one is not applied, and what it had before is taken away."""
    world = World(authentication={"accessKey": "shared"})
    world.meta["creationTimestamp"] = "2026-01-02T00:00:00Z"
    world.settle()
    elder = {"metadata": metadata("elder", creationTimestamp="2026-01-01T00:00:00Z"), "spec": {}}
    world.rivals = (elder,)
    world.settle()
    assert world.condition("Applied") == ("False", "NameTaken")
    assert "older User elder" in str(world.status)
    assert world.value(BROKER_USERS, "till.json") is None
    assert [event.reason for event in world.events][-1] == "NameTaken"


@pytest.mark.parametrize(
    ("broker", "reason"), [(None, "BrokerMissing"), (sample_broker(), "NotAuthenticated")]
)
def test_a_user_of_nobody_is_told_so(broker, reason) -> None:
    """And has no finalizer for it."""
    world = World()
    world.broker = broker
    world.settle()
    assert world.condition("Ready") == ("False", reason)
    assert "finalizers" not in world.meta
    assert world.secrets == {}


def test_a_rule_that_cannot_be_followed_changes_nothing() -> None:
    """The message says which, and the rules of before stay in force."""
    world = World(acls=PUB)
    world.settle()
    before = world.file()
    world.spec["acls"] = [{**PUB[0], "sourceCIDRs": ["10.0.0.0/99"]}]
    world.settle()
    assert world.condition("Applied") == ("False", "AclInvalid")
    assert "the rule about Topic:payments" in str(world.status)
    assert world.file() == before


def test_secrets_of_somebody_else_are_left_alone() -> None:
    """Neither that of the clients nor that of the Broker is taken over."""
    for name in (OWN, BROKER_USERS):
        world = World()
        world.put(name, {"till.json": "theirs"})
        world.turn()
        assert world.condition("SecretReady") == ("False", "NameTaken")
        assert list(world.secrets) == [name]
        assert world.value(name, "till.json") == "theirs"


def test_quotas_stand_in_the_file_and_reach_every_broker() -> None:
    """All that the resource can have are known to brokers, by the same names."""
    numbers = {name: index + 1 for index, name in enumerate(QUOTA_NAMES)}
    world = World(acls=PUB, quotas=numbers)
    world.name_server = sample_name_server(authentication=LOCKED["authentication"])
    world.settle()
    assert world.file()["quotas"] == numbers
    # Name servers have none, and may be older.
    text = world.value(NS_USERS, "orders.till.json")
    assert text is not None
    assert json.loads(text) == {
        key: value for key, value in world.file().items() if key != "quotas"
    }
    assert set(world.brokers) == {"orders-g0-0", "orders-g1-0"}
    for record in world.brokers.values():
        assert record is not None
        assert record.quotas is not None
        assert quotas_body(record.quotas) == numbers
        assert record.unknown_quotas == ()


@pytest.mark.parametrize("spec", [{}, {"quotas": {}}])
def test_a_user_without_quotas_has_the_file_of_before(spec: dict[str, Any]) -> None:
    """A broker that is older than quotas goes on with it."""
    world = World(acls=PUB, **spec)
    world.settle()
    assert set(world.file()) == {
        "username", "password", "userType", "userStatus", "policies", "revision"
    }  # fmt: skip


def test_a_change_of_quotas_is_another_state_of_the_user() -> None:
    """It is applied once every broker says so, and makes no other secret key."""
    world = World(acls=PUB, quotas={"connections": 5})
    world.settle()
    before = world.file()
    world.spec["quotas"] = {"connections": 6}
    world.turn()
    assert world.condition("Applied")[0] == "False"
    assert world.file()["revision"] != before["revision"]
    world.settle()
    assert world.condition("Applied") == ("True", "Applied")
    assert world.file()["quotas"] == {"connections": 6}
    assert world.file()["password"] == before["password"]
    del world.spec["quotas"]
    world.settle()
    assert "quotas" not in world.file()
