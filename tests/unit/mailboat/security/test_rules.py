"""Rules of one user."""

import ipaddress
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailboat.errors import IllegalUserError
from mailboat.security.access import Action, Need, ResourceKind
from mailboat.security.rules import (
    DENIED,
    ENTRIES_MAX,
    NO_MATCH,
    SOURCE_IPS_MAX,
    Decision,
    PolicyEntry,
    PolicyRules,
    PolicyType,
    parse_entry,
    parse_networks,
    parse_policy_type,
    parse_resource,
)

HERE = "10.0.0.1"


def entry(
    resource: str,
    actions: str = "All",
    decision: str = "Allow",
    source_ips: Iterable[str] = (),
    policy_type: PolicyType = PolicyType.CUSTOM,
) -> PolicyEntry:
    """Make an entry in RocketMQ's words."""
    return parse_entry(resource, actions.split(","), source_ips, decision, policy_type)


def need(resource: str, actions: str = "Pub") -> Need:
    """Make a need in the same words; `Topic:*` asks for all topics."""
    kind, _, name = resource.partition(":")
    return Need(ResourceKind(kind), name, frozenset(map(Action, actions.split(","))))


def refusal(entries: Iterable[PolicyEntry], wanted: Need, source_ip: str = HERE) -> str | None:
    """Ask the rules that entries make."""
    return PolicyRules(entries).refusal(wanted, source_ip)


def test_without_rules_nothing_is_allowed() -> None:
    """No entry is no permission."""
    assert refusal([], need("Topic:a")) == NO_MATCH


@pytest.mark.parametrize(
    ("resource", "wanted"),
    [
        ("Topic:a", "Topic:a"),
        ("Topic:a*", "Topic:a"),
        ("Topic:a*", "Topic:ab"),
        ("Topic:*", "Topic:ab"),
        ("Topic:*", "Topic:*"),
        ("*", "Topic:ab"),
        ("*", "Group:g"),
        ("*", "Cluster:DefaultCluster"),
        ("Group:g*", "Group:g1"),
        ("Cluster:DefaultCluster", "Cluster:DefaultCluster"),
        ("Topic:%RETRY%g", "Topic:%RETRY%g"),
    ],
)
def test_resources_that_match(resource: str, wanted: str) -> None:
    """The name itself, a beginning of it, all of a kind, and everything."""
    assert refusal([entry(resource)], need(wanted)) is None


@pytest.mark.parametrize(
    ("resource", "wanted"),
    [
        ("Topic:a", "Topic:ab"),
        ("Topic:a", "Group:a"),
        ("Topic:ab*", "Topic:a"),
        ("Topic:a*", "Topic:ba"),
        ("Topic:a*", "Topic:*"),
        ("Topic:a", "Topic:A"),
        ("Topic:*", "Group:a"),
        ("Group:*", "Cluster:a"),
    ],
)
def test_resources_that_do_not_match(resource: str, wanted: str) -> None:
    """A longer name, another kind, another case; all topics are not those of one prefix."""
    assert refusal([entry(resource)], need(wanted)) == NO_MATCH


def test_one_action_of_a_need_suffices() -> None:
    """Offsets are read with Sub or with Get; All is each action."""
    wanted = need("Topic:a", "Sub,Get")
    assert refusal([entry("Topic:a", "Get")], wanted) is None
    assert refusal([entry("Topic:a", "Pub")], wanted) == NO_MATCH
    assert refusal([entry("Topic:a", "All")], wanted) is None


@pytest.mark.parametrize(
    "entries",
    [
        [
            entry("Topic:*", policy_type=PolicyType.CUSTOM),
            entry("Topic:a", "All", "Deny", (), PolicyType.DEFAULT),
        ],
        [entry("Topic:*"), entry("*", decision="Deny")],
        [entry("Topic:ab"), entry("Topic:ab*", decision="Deny")],
        [entry("Topic:ab*"), entry("Topic:a*", decision="Deny")],
        [entry("Topic:a*"), entry("Topic:*", decision="Deny")],
        [entry("Topic:ab", "Pub"), entry("Topic:a*", "Sub", "Deny")],
    ],
)
def test_the_more_specific_entry_decides(entries: list[PolicyEntry]) -> None:
    """In whatever order they stand, and with the decisions exchanged too."""
    wanted = need("Topic:ab")
    for ordered in (entries, entries[::-1]):
        assert refusal(ordered, wanted) is None
    exchanged = [
        PolicyEntry(
            one.resource,
            one.actions,
            Decision.DENY if one.decision is Decision.ALLOW else Decision.ALLOW,
            policy_type=one.policy_type,
        )
        for one in entries
    ]
    for ordered in (exchanged, exchanged[::-1]):
        assert refusal(ordered, wanted) == DENIED


def test_an_entry_that_does_not_match_leaves_it_to_the_less_specific() -> None:
    """By its actions or its addresses it says nothing about the need."""
    allow_all = entry("Topic:*")
    assert refusal([entry("Topic:a", "Sub", "Deny"), allow_all], need("Topic:a")) is None
    elsewhere = entry("Topic:a", "Pub", "Deny", ["192.168.0.0/16"])
    assert refusal([elsewhere, allow_all], need("Topic:a")) is None
    assert refusal([elsewhere, allow_all], need("Topic:a"), "192.168.3.4") == DENIED


def test_deny_wins_at_equal_rank() -> None:
    """In whatever order the two stand."""
    entries = [entry("Topic:a", "Pub"), entry("Topic:a", "All", "Deny")]
    assert refusal(entries, need("Topic:a")) == DENIED
    assert refusal(entries[::-1], need("Topic:a")) == DENIED


@pytest.mark.parametrize(
    ("source_ips", "source_ip"),
    [
        (["10.0.0.1"], "10.0.0.1"),
        (["10.0.0.0/8"], "10.200.0.1"),
        (["10.0.0.7/8"], "10.200.0.1"),
        (["192.168.0.1", "10.0.0.0/30"], "10.0.0.3"),
        (["2001:DB8::1"], "2001:db8:0:0:0:0:0:1"),
        (["2001:db8::/32"], "2001:db8:ffff::"),
        (["fe80::1"], "fe80::1%eth0"),
        (["10.0.0.1"], "::ffff:10.0.0.1"),
        (["::ffff:10.0.0.0/104"], "10.0.0.1"),
    ],
)
def test_addresses_that_match(source_ips: list[str], source_ip: str) -> None:
    """Spellings of one address are equal, and a Deny counts for each of them."""
    allow = [entry("Topic:a", source_ips=source_ips)]
    assert refusal(allow, need("Topic:a"), source_ip) is None
    deny = [entry("Topic:a", decision="Deny", source_ips=source_ips), entry("Topic:*")]
    assert refusal(deny, need("Topic:a"), source_ip) == DENIED


@pytest.mark.parametrize("source_ip", ["11.0.0.1", "2001:db8::1"])
def test_addresses_that_do_not_match(source_ip: str) -> None:
    """Another network, and another kind of address."""
    allow = [entry("Topic:a", source_ips=["10.0.0.0/8"])]
    assert refusal(allow, need("Topic:a"), source_ip) == NO_MATCH


def test_an_address_that_cannot_be_read_is_kept_out() -> None:
    """It is in no network that allows and in each that denies."""
    allow = [entry("Topic:a", source_ips=["0.0.0.0/0"])]
    assert refusal(allow, need("Topic:a"), "") == NO_MATCH
    deny = [entry("Topic:a", decision="Deny", source_ips=["10.0.0.1"]), entry("Topic:*")]
    assert refusal(deny, need("Topic:a"), "somewhere") == DENIED


@pytest.mark.parametrize(
    "text", ["*", "Topic:*", "Topic:a", "Topic:a*", "Group:g", "Group:*", "Cluster:my cluster"]
)
def test_resources_are_written_as_they_are_read(text: str) -> None:
    """Also where words were in small letters."""
    assert str(parse_resource(text)) == text
    assert str(parse_resource(text.replace("Topic", "topic"))) == text


@pytest.mark.parametrize(
    ("resource", "reason"),
    [
        (" ", "The resource is null."),
        ("Topic", "is not"),
        ("Any:a", "is not"),
        ("*:a", "is not"),
        ("Namespace:n", "is not"),
        ("Topic:", "is empty"),
        ("Topic:a*b*", "illegal character"),
        ("Topic:a*b", "illegal character"),
        ("Topic:**", "illegal character"),
        ("Topic:a\nb", "illegal character"),
        ("Group:a.b", "illegal character"),
        ("Group:" + "g" * 256, "at most 255"),
        ("Cluster:", "names no cluster"),
        ("Cluster:a*b", "names no cluster"),
    ],
)
def test_bad_resources(resource: str, reason: str) -> None:
    """A rule about a name that nothing has would be a Deny that never counts."""
    with pytest.raises(IllegalUserError, match=reason) as caught:
        parse_resource(resource)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([], "The actions is empty."),
        (["Any"], "The actions can not be Any."),
        (["Pub", "Subb"], "Subb is none of All, Pub, Sub"),
        ([""], "is none of"),
    ],
)
def test_bad_actions(actions: list[str], reason: str) -> None:
    """A word that is not known is not dropped: what is left of the rule would say less or more."""
    with pytest.raises(IllegalUserError, match=reason):
        parse_entry("Topic:a", actions, [], "Allow")


@pytest.mark.parametrize("decision", ["", "allowed", "no"])
def test_bad_decisions(decision: str) -> None:
    """There are two."""
    with pytest.raises(IllegalUserError, match="The decision is null or illegal"):
        entry("Topic:a", decision=decision)


@pytest.mark.parametrize("text", ["", "*", "10.0.0.*", "10.0.0.1-20", "10.0.0.1/33", "host"])
def test_bad_addresses(text: str) -> None:
    """The lists of ACL 1.0 are not addresses."""
    with pytest.raises(IllegalUserError, match="The source ip is invalid"):
        parse_networks([text])


def test_policy_types() -> None:
    """Nothing means Custom, as in RocketMQ."""
    assert parse_policy_type("") is PolicyType.CUSTOM
    assert parse_policy_type("default") is PolicyType.DEFAULT
    with pytest.raises(IllegalUserError, match="policy type"):
        parse_policy_type("Other")


def test_limits() -> None:
    """A user cannot have more entries, nor an entry more addresses, than are looked up quickly."""
    entries = [entry(f"Topic:t{number}") for number in range(ENTRIES_MAX)]
    assert refusal(entries, need("Topic:t7")) is None
    with pytest.raises(IllegalUserError, match="more than"):
        PolicyRules([*entries, entry("Topic:t")])
    with pytest.raises(IllegalUserError, match="more than"):
        parse_networks(str(ipaddress.ip_address(number)) for number in range(SOURCE_IPS_MAX + 1))


def test_addresses_are_written_as_they_are_read() -> None:
    """One address has no mask."""
    one = entry("Topic:a", source_ips=["10.0.0.1", "10.1.0.0/16", "2001:DB8::1"])
    assert one.source_ips == ["10.0.0.1", "10.1.0.0/16", "2001:db8::1"]


_NAMES = st.text("ab", min_size=1, max_size=4)
_RESOURCES = st.one_of(
    st.just("*"),
    st.builds(
        "{}:{}".format,
        st.sampled_from(["Topic", "Group"]),
        st.one_of(st.just("*"), _NAMES, _NAMES.map("{}*".format)),
    ),
)
_ACTIONS = st.sets(st.sampled_from(["All", "Pub", "Sub", "Get"]), min_size=1, max_size=2)
_ENTRIES = st.builds(
    lambda resource, actions, decision, source_ips, policy_type: parse_entry(
        resource, actions, source_ips, decision, policy_type
    ),
    _RESOURCES,
    _ACTIONS,
    st.sampled_from(["Allow", "Deny"]),
    st.sampled_from([[], ["10.0.0.0/8"], ["10.0.0.1", "::1"]]),
    st.sampled_from(list(PolicyType)),
)
_NEEDS = st.builds(
    Need,
    st.sampled_from([ResourceKind.TOPIC, ResourceKind.GROUP]),
    st.one_of(st.just("*"), _NAMES),
    st.sets(st.sampled_from([Action.PUB, Action.SUB, Action.GET]), min_size=1).map(frozenset),
)


def _counts(one: PolicyEntry, wanted: Need, source_ip: str) -> bool:
    kind, _, name = str(one.resource).partition(":")
    if kind not in ("*", wanted.kind.value):
        return False
    if kind != "*" and name != "*":
        is_prefix = name.endswith("*")
        if not (wanted.name.startswith(name[:-1]) if is_prefix else wanted.name == name):
            return False
    if not one.actions & (wanted.actions | {Action.ALL}):
        return False
    address = ipaddress.ip_address(source_ip)
    return not one.source_ips or any(
        address in ipaddress.ip_network(text) for text in one.source_ips
    )


def _rank(one: PolicyEntry) -> tuple[bool, bool, int, int, bool]:
    """Less comes first: the five rules of the module, one after another."""
    kind, _, name = str(one.resource).partition(":")
    star = name.endswith("*")
    return (
        one.policy_type is PolicyType.DEFAULT,
        kind == "*",
        0 if not star else 1 if name != "*" else 2,
        -len(name) if star else 0,
        one.decision is Decision.ALLOW,
    )


@given(
    st.lists(_ENTRIES, max_size=8),
    _NEEDS,
    st.sampled_from(["10.0.0.1", "10.9.9.9", "11.0.0.1", "::1"]),
)
@example([entry("Topic:ab*"), entry("Topic:a*", decision="Deny")], need("Topic:abb"), HERE)
def test_rules_decide_as_their_definition(
    entries: list[PolicyEntry], wanted: Need, source_ip: str
) -> None:
    """The first of all entries that count, in the order of the five rules, decides."""
    counting = sorted((one for one in entries if _counts(one, wanted, source_ip)), key=_rank)
    if not counting:
        expected = NO_MATCH
    else:
        expected = DENIED if counting[0].decision is Decision.DENY else None
    assert refusal(entries, wanted, source_ip) == expected
