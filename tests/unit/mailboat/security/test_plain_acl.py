"""Accounts of RocketMQ 4."""

import logging

import pytest

from mailboat.errors import IllegalUserError
from mailboat.model.names import TRACE_TOPIC
from mailboat.security.access import Action, Need, ResourceKind
from mailboat.security.plain_acl import PLAIN_ACL_MAX_BYTES, decode_plain_acl
from mailboat.security.users import User

SECRET = "planted-secret"


def account(text: str = "", secret: str = SECRET) -> User:
    """Read a file with one account."""
    lines = "".join(f"  {line.strip()}\n" for line in text.splitlines())
    content = f"accounts:\n- accessKey: account\n  secretKey: {secret}\n{lines}"
    return decode_plain_acl(content.encode())["account"].user(0)


def may(user: User, resource: str, *actions: str) -> bool:
    """Ask for any one of some actions, "Topic:a"."""
    kind, _, name = resource.partition(":")
    need = Need(ResourceKind(kind), name, frozenset(map(Action, actions)))
    return user.rules.refusal(need, "10.0.0.1") is None


@pytest.mark.parametrize(
    ("own", "default", "pub", "sub"),
    [
        ("PUB", "SUB", True, False),
        ("SUB", "PUB", False, True),
        ("PUB|SUB", "DENY", True, True),
        ("SUB|PUB", "DENY", True, True),
        ("DENY", "PUB|SUB", False, False),
        ("pub", "PUB|SUB", False, False),
        ("PUB,SUB", "PUB|SUB", False, False),
        ("ANY", "PUB|SUB", False, False),
    ],
)
def test_an_own_entry_decides_alone(own: str, default: str, pub: bool, sub: bool) -> None:
    """What it does not say the default does not add; a misspelt one means DENY."""
    user = account(f'defaultTopicPerm: {default}\ntopicPerms: ["orders={own}"]')
    assert may(user, "Topic:orders", "Pub") is pub
    assert may(user, "Topic:orders", "Sub") is sub
    # Whoever may subscribe may look at offsets, whoever may not must not by another action.
    assert may(user, "Topic:orders", "Sub", "Get") is sub


@pytest.mark.parametrize(
    ("default", "pub", "sub"),
    [("", False, False), ("DENY", False, False), ("PUB", True, False), ("SUB|PUB", True, True)],
)
def test_defaults(default: str, pub: bool, sub: bool) -> None:
    """They count for what has no entry; none and a misspelt one mean DENY."""
    user = account(f"defaultTopicPerm: {default}\ntopicPerms: [orders=PUB]")
    assert may(user, "Topic:other", "Pub") is pub
    assert may(user, "Topic:other", "Sub") is sub
    assert not may(user, "Group:other", "Sub")
    user = account(f"defaultGroupPerm: {default}\ngroupPerms: [readers=SUB]")
    assert may(user, "Group:other", "Sub") is sub
    assert may(user, "Group:readers", "Sub")


def test_names_are_not_patterns() -> None:
    """A star is no name of a topic: the file is wrong."""
    user = account("topicPerms: [orders=PUB]")
    assert not may(user, "Topic:orders2", "Pub")
    with pytest.raises(IllegalUserError, match="illegal character"):
        account("topicPerms: ['orders*=PUB']")


def test_everybody_may_trace_unless_told_otherwise() -> None:
    """The topic of traces takes what producers and consumers tell about themselves."""
    topic = f"Topic:{TRACE_TOPIC}"
    assert may(account(), topic, "Pub")
    assert not may(account(), topic, "Sub")
    assert not may(account(f"topicPerms: [{TRACE_TOPIC}=DENY]"), topic, "Pub")


def test_admins() -> None:
    """Without permissions an administrator may do all; with some it is bound to them."""
    assert account("admin: true").is_super
    assert account("admin: true\ndefaultTopicPerm: DENY").is_super
    bound = account("admin: true\ntopicPerms: [orders=PUB]")
    assert not bound.is_super
    assert may(bound, "Cluster:DefaultCluster", "Update")
    assert may(bound, "Topic:orders", "Delete")
    assert may(bound, "Topic:orders", "Pub")
    assert not may(bound, "Topic:orders", "Sub")
    assert not may(bound, "Topic:other", "Pub")
    assert not account("admin: false").is_super
    assert not may(account(), "Cluster:DefaultCluster", "Update")


@pytest.mark.parametrize(
    ("written", "read"),
    [("12345678", b"12345678"), ("'12345678'", b"12345678"), ("012345678", b"012345678")],
)
def test_numbers_are_texts(written: str, read: bytes) -> None:
    """Files of RocketMQ have them without quotes."""
    assert account(secret=written).secrets == (read,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there are no accounts"),
        ("[]", "there are no accounts"),
        ("accounts: {}", "has to be a list"),
        ("accounts: [a]", "account 1: it has to be keys"),
        ("account: []", "no key account"),
        ("globalWhiteRemoteAddresses: [10.0.0.1]\naccounts: []", "let in without a signature"),
        ("accounts:\n- accessKey: account", "secretKey has to be longer than 6"),
        ("accounts:\n- {accessKey: accoun, secretKey: planted-secret}", "longer than 6"),
        ("accounts:\n- {accessKey: account, secretKey: 1.5}", "put it in quotes"),
        ("accounts:\n- {accessKey: account, secretKey: true}", "put it in quotes"),
        ("accounts:\n- {accessKey: account, secretKey: *planted-secret}", "in quotes"),
        ("accounts:\n- {accessKey: account, secretKey: !planted-secret x}", "in quotes"),
        ("accounts:\n- &planted-secret {accessKey: account}", "in quotes"),
        ("accounts:\n- secretKey: 'planted-secret\n  x: }{", "not YAML"),
        ("accounts:\n- {secretKey: planted-secret, accessKey: a\tb: c}", "not YAML|longer"),
        ("a: 1\na: 2", "a key is there twice"),
        ("a: &x [1]\nb: *x", "in quotes"),
        ("!!python/object/apply:os.system [id]", "in quotes"),
        ("[" * 1_000_000, "not YAML|no list of accounts"),
        ("- " * 10, "no list of accounts"),
        ("accounts:\n- {accessKey: account, secretKey:planted-secret}", "no key secretKey$"),
    ],
)
def test_bad_files(text: str, reason: str) -> None:
    """Each is refused with a sentence that shows nothing of the file's secrets."""
    with pytest.raises(IllegalUserError, match=reason) as caught:
        decode_plain_acl(text.encode())
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("whiteRemoteAddress: 10.0.0.*", "let in without a signature"),
        ("admin: yes please", "true or false"),
        ("topicPerms: orders=PUB", "has to be a list"),
        ("topicPerms: [orders]", "is not a name"),
        ("topicPerms: [orders=PUB=SUB]", "is not a name"),
        ("topicPerms: [orders=PUB, orders=SUB]", "is there twice"),
        ("groupPerms: [a.b=SUB]", "illegal character"),
        ("topicPerm: [orders=DENY]", "no key topicPerm"),
    ],
)
def test_bad_accounts(text: str, reason: str) -> None:
    """The sentence names the account by its number, and not its secret."""
    with pytest.raises(IllegalUserError, match=f"account 1: .*{reason}") as caught:
        account(text)
    assert SECRET not in str(caught.value)


def test_two_accounts_of_one_name() -> None:
    """Which of them counts is not guessed."""
    one = "- {accessKey: account, secretKey: planted-secret}\n"
    with pytest.raises(IllegalUserError, match=r"account 2: .* twice"):
        decode_plain_acl(f"accounts:\n{one}{one}".encode())


def test_what_rocketmq_writes_itself_is_taken() -> None:
    """Empty lists, empty addresses and the version of the file."""
    text = """
globalWhiteRemoteAddresses:
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
- accessKey: rocketmq2
  secretKey: 12345678
  admin: true
dataVersion:
- counter: 1
  timestamp: 1700000000000
"""
    records = decode_plain_acl(text.encode())
    assert list(records) == ["RocketMQ", "rocketmq2"]
    assert records["rocketmq2"].is_super
    first = records["RocketMQ"].user(0)
    assert may(first, "Topic:topicB", "Pub")
    assert not may(first, "Topic:topicA", "Pub", "Sub")
    assert not may(first, "Group:groupA", "Sub")
    assert may(first, "Group:other", "Sub")


def test_misspelt_permissions_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody meant something else."""
    with caplog.at_level(logging.WARNING):
        account("topicPerms: [orders=pub]")
    assert "pub is no permission and means DENY in topicPerms orders" in caplog.text
    assert SECRET not in caplog.text


def test_the_largest_file_is_small_enough_to_read() -> None:
    """The limit is one of the reader of files; a file of that size does not stall it."""
    one = "- {accessKey: account%06d, secretKey: planted-secret, topicPerms: [orders=PUB]}\n"
    text = "accounts:\n" + "".join(one % number for number in range(5_000))
    assert len(text) < PLAIN_ACL_MAX_BYTES
    assert len(decode_plain_acl(text.encode())) == 5_000
