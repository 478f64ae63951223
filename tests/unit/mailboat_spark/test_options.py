import pytest

from mailboat.errors import ConfigError
from mailboat.model.message_queue import MessageQueue
from mailboat_spark.offsets import StartingOffsets
from mailboat_spark.options import DEFAULT_GROUP, parse_options, parse_schema_options

NEEDED = {"namesrv": "10.0.0.1:9876", "subscribe": "orders"}


def refused(options, use="stream"):
    """Return the sentence with which options are refused."""
    with pytest.raises(ConfigError) as caught:
        parse_options(options, use)
    return str(caught.value)


def test_two_options_are_enough():
    """Name servers and topics are all a query must name; the rest are Kafka's defaults."""
    options = parse_options(NEEDED, "stream")
    assert options.namesrv == "10.0.0.1:9876"
    assert options.topics == ("orders",)
    assert options.group == DEFAULT_GROUP
    assert options.starting_offsets == StartingOffsets("latest")
    assert options.fail_on_data_loss
    assert not options.commit_group_offsets
    assert options.max_offsets_per_trigger is None
    assert parse_options(NEEDED, "batch").starting_offsets == StartingOffsets("earliest")


@pytest.mark.parametrize("name", ["maxoffsetspertrigger", "MaxOffsetsPerTrigger"])
def test_names_are_matched_without_case(name):
    """Spark hands option names over in lower case, users write them as they like."""
    assert parse_options({**NEEDED, name: "7"}, "stream").max_offsets_per_trigger == 7


def test_a_mistyped_name_is_answered_with_the_nearest():
    """A typo is an error that says what was probably meant."""
    text = refused({**NEEDED, "maxOffsetPerTriger": "7"})
    assert "maxOffsetPerTriger" in text
    assert "did you mean maxOffsetsPerTrigger?" in text


def test_a_name_like_no_other_is_refused_too():
    """A name without a near one is an error all the same."""
    assert "is not an option" in refused({**NEEDED, "zzz": "7"})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("namesrv", "here", "is not HOST:PORT"),
        ("subscribe", " , ", "names no topic"),
        ("subscribe", "no spaces!", "no spaces!"),
        ("subscribe", "_v", "cannot be read"),
        ("subscribe", "_from", "cannot be read"),
        ("subscribe", "_last", "cannot be read"),
        ("groupId", "a b", "a b"),
        ("failOnDataLoss", "maybe", "neither true nor false"),
        ("maxOffsetsPerTrigger", "0", "less than 1"),
        ("maxOffsetsPerTrigger", "many", "not a whole number"),
        ("maxOffsetsPerTrigger", str(2**63), "more than 9223372036854775807"),
        ("pullBatchSize", str(2**31), "more than 2147483647"),
        ("arrowBatchBytes", str(2**30 + 1), "more than 1073741824"),
        ("schemaMode", "pulsar", "neither kafka nor rocketmq"),
        ("startingOffsets", "yesterday", "is none of earliest, latest, group"),
        ("startingOffsets", '{"orders"', "is not JSON"),
        ("startingOffsets", '{"orders":{"b":1}}', "is not broker:queue"),
        ("startingOffsets", '{"orders":{"b:0":-3}}', "-3"),
        ("startingOffsets", '{"other":{"b:0":1}}', "which 'subscribe' does not"),
        ("tags", "||", "names no tag"),
    ],
)
def test_a_wrong_value_is_named_with_its_option(name, value, reason):
    """The error names the option, the value and what is wrong with it."""
    text = refused({**NEEDED, name: value})
    assert text.startswith(f"{name}=")
    assert reason in text


@pytest.mark.parametrize("name", ["namesrv", "subscribe"])
def test_a_missing_option_is_named(name):
    """Without name servers or topics there is nothing to read."""
    rest = {key: value for key, value in NEEDED.items() if key != name}
    assert f"{name}=: is required" in refused(rest)


@pytest.mark.parametrize(
    ("name", "value", "use"),
    [("maxOffsetsPerTrigger", "7", "batch"), ("endingOffsets", "latest", "stream")],
)
def test_an_option_of_the_other_kind_of_query_is_refused(name, value, use):
    """An option that would have no effect is an error, not silence."""
    assert "queries only" in refused({**NEEDED, name: value}, use)


def test_a_group_commits_and_may_be_started_from():
    """With groupId, offsets are stored for the group unless that is switched off."""
    given = {**NEEDED, "groupId": "g", "startingOffsets": "group"}
    assert parse_options(given, "stream").commit_group_offsets
    assert not parse_options(
        {**given, "commitGroupOffsets": "false"}, "stream"
    ).commit_group_offsets
    assert "needs groupId" in refused({**NEEDED, "startingOffsets": "group"})
    assert "needs groupId" in refused({**NEEDED, "commitGroupOffsets": "true"})


def test_offsets_by_queue_are_read():
    """JSON offsets name broker and queue; -2 and -1 mean first and end."""
    given = {**NEEDED, "startingOffsets": '{"orders":{"b-1:0":-2,"b-1:1":-1,"b-1:2":9}}'}
    assert parse_options(given, "stream").starting_offsets.by_queue == {
        MessageQueue("orders", "b-1", 0): -2,
        MessageQueue("orders", "b-1", 1): -1,
        MessageQueue("orders", "b-1", 2): 9,
    }


@pytest.mark.parametrize("text", ["a,b", "a, b,a", "a,b,", ",a,, b ,"])
def test_several_topics_are_named_once_each(text):
    """Topics are separated by commas; repeated and empty ones do not count."""
    assert parse_options({**NEEDED, "subscribe": text}, "stream").topics == ("a", "b")


def test_the_schema_needs_only_its_own_options():
    """Spark asks for the schema before it says whether the query streams."""
    assert parse_schema_options({"endingoffsets": "?"}) == ("kafka", False)
    chosen = parse_schema_options({"schemamode": "RocketMQ", "includeheaders": "true"})
    assert chosen == ("rocketmq", True)
