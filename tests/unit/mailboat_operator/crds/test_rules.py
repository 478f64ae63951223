"""The rules that users meet: in the API server, and again in `parse_*`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.config import role_settings
from mailboat_operator.crds.broker import OWNED_CONFIG, parse_broker
from mailboat_operator.crds.name_server import parse_name_server
from mailboat_operator.crds.reference import rules
from mailboat_operator.crds.topic import parse_topic
from mailboat_operator.crds.user import parse_user
from mailboat_operator.errors import InvalidResourceError

PARSERS = {
    "Broker": parse_broker,
    "NameServer": parse_name_server,
    "Topic": parse_topic,
    "User": parse_user,
}


def test_case_is_taken_or_refused(api_server, make, case):
    """The API server takes what is right, and refuses what is wrong with the right sentence."""
    before = make(case["kind"], case["before"]) if "before" in case else None
    refusals = api_server.refusals(make(case["kind"], case["set"]), before)
    if "refused" not in case:
        assert refusals == {}
    else:
        assert any(case["refused"] in sentence for sentence in refusals.values()), refusals


def test_parsing_agrees_with_the_api_server(make, case):
    """The operator refuses what the API server refuses of a new object, and nothing else."""
    manifest = make(case["kind"], case["set"])
    # The operator does not see the object before a change.
    if "refused" not in case or case.get("handed_through") or "before" in case:
        assert PARSERS[case["kind"]](manifest).name == manifest["metadata"]["name"]
    else:
        with pytest.raises(InvalidResourceError):
            PARSERS[case["kind"]](manifest)


@pytest.mark.parametrize("key", OWNED_CONFIG)
def test_owned_setting_is_refused(api_server, make, key):
    """A setting that has a field of its own is refused in config, naming that field."""
    manifest = make("Broker", {"spec.config": {key: "1"}})
    sentence = f"{key} cannot be set here: {OWNED_CONFIG[key]}"
    assert list(api_server.refusals(manifest).values()) == [sentence]
    with pytest.raises(InvalidResourceError, match=f"config.{key} cannot be set here"):
        parse_broker(manifest)


def test_owned_settings_exist():
    """Only settings that a broker knows are refused, so that no typing error hides one."""
    assert set(OWNED_CONFIG) <= set(role_settings("broker"))


def test_fields_named_in_remedies_exist(schemas):
    """The field that a refusal points to is there."""
    for remedy in OWNED_CONFIG.values():
        if not remedy.startswith("use "):
            continue
        node = schemas["Broker"]
        for part in remedy.removeprefix("use ").split("."):
            node = node["properties"][part]


def test_every_rule_is_broken_by_a_case(api_server, make, schemas, cases):
    """No rule is there that nothing shows to work."""
    broken = {
        (case["kind"], rule)
        for case in cases
        if "refused" in case
        for rule in api_server.refusals(
            make(case["kind"], case["set"]),
            make(case["kind"], case["before"]) if "before" in case else None,
        )
    }
    known = {
        (kind, rule["rule"])
        for kind, schema in schemas.items()
        for _, rule in rules(schema, "")
        if rule["rule"] not in {f"!('{key}' in self)" for key in OWNED_CONFIG}
    }
    unbroken = known - broken
    shared = {(kind, rule) for kind, rule in unbroken if ("Broker", rule) in broken}
    assert unbroken - shared == set()


def _maybe(**fields):
    return st.fixed_dictionaries({}, optional=fields)


def _mostly(good, bad):
    return st.integers(0, 19).flatmap(lambda n: st.sampled_from(bad if n == 0 else good))


SIZES = _mostly(["16Gi", "16.5Gi", "17Gi", "17179869184"], ["4Gi", "16G", "0", "x", "4 Gi", "20Ti"])
SEGMENTS = _mostly(["1Mi", "1Gi", "512Mi", "1.5Gi"], ["2Gi", "1023Ki", "x"])
PERCENT = _mostly([85, 86], [0, 10, 74, 91, 98])
FREE = _mostly(["1Gi", "8.5Gi", "9G"], ["16Gi", "0", "x"])
LEVEL = _maybe(percent=PERCENT, freeBytes=FREE)
AUTO_GROW = _maybe(
    enabled=st.booleans(),
    whenUsedPercent=_mostly([50, 84], [0, 85, 97]),
    maxSize=SIZES,
    step=_mostly(["5%", "10Gi"], ["0%", "%"]),
    cooldown=_mostly(["6h", "0s"], ["6", ""]),
)
WINDOWS = _mostly(["04:00-05:00", "22:00-24:00", "23:00-01:00"], ["05:00-05:00", "4-5"])
THRESHOLDS = _maybe(
    expire=LEVEL,
    forceClean=LEVEL,
    rejectWrites=LEVEL,
    hysteresisPercent=_mostly([0, 3, 20], [-1, 21]),
)
BROKER_SPECS = st.fixed_dictionaries(
    {
        "nameServers": _mostly(
            [{"ref": "ns"}, {"addresses": ["a:1", "b:2"]}, {"ref": "ns", "addresses": []}],
            [
                {},
                {"ref": ""},
                {"ref": "NS"},
                {"addresses": ["c"]},
                {"ref": "a", "addresses": ["b:1"]},
            ],
        ),
        "storage": st.fixed_dictionaries(
            {"size": SIZES}, optional={"segmentSize": SEGMENTS, "autoGrow": AUTO_GROW}
        ),
    },
    optional={
        "groups": _mostly([1, 64], [-1, 0, 65]),
        "retention": _maybe(
            hours=_mostly([24, 72, 1_000_000], [-1, 0, 1_000_001]),
            minHours=_mostly([0, 24], [-1, 73]),
            deleteWindow=st.lists(WINDOWS, min_size=1, max_size=2),
            thresholds=THRESHOLDS,
        ),
        "shutdown": _maybe(
            drainSeconds=_mostly([0, 5], [-1, 46]), graceSeconds=_mostly([20, 600], [0, 19, 3601])
        ),
        "config": st.dictionaries(
            _mostly(["flushDiskType", "maxMessageSize"], ["brokerName"]), _mostly(["x"], ["a\nb"])
        ),
    },
)


@given(spec=BROKER_SPECS)
def test_any_broker_is_judged_alike(api_server, make, spec):
    """Whatever is written, the operator's verdict is the API server's."""
    manifest = make("Broker", {"spec": spec})
    refusals = api_server.refusals(manifest)
    try:
        parsed = parse_broker(manifest)
    except InvalidResourceError as error:
        assert refusals, str(error)
    else:
        assert not refusals
        assert parse_broker(api_server.default(manifest)).spec == parsed.spec
