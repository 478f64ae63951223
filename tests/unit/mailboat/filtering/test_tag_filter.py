"""Tag subscriptions as sets of codes, and what is remembered of them."""

import pytest

from mailboat.broker.processors.send_rules import TagsCodes
from mailboat.errors import IllegalMessageError
from mailboat.filtering import tag_filter
from mailboat.filtering.tag_filter import tags_codes
from mailboat.model.tags import tags_code


def test_codes_are_those_of_the_tags() -> None:
    """Of an ordinary expression, and of a long one, of which only some are remembered."""
    before = tag_filter._recall.cache_info().currsize
    assert tags_codes("a || remembered") == {tags_code("a"), tags_code("remembered")}
    assert tags_codes("*") is None
    names = [f"t{number}" for number in range(1000)]
    assert tags_codes(" || ".join(names)) == {tags_code(name) for name in names}
    assert tag_filter._recall.cache_info().currsize <= before + 2


def test_long_tags_of_messages_are_not_remembered() -> None:
    """Sixty thousand of them would be two gigabytes."""
    codes = TagsCodes()
    assert codes["t" * 30_000] == tags_code("t" * 30_000)
    assert codes["t"] == tags_code("t")
    assert list(codes) == ["t"]


def test_an_expression_that_takes_long_to_read_is_refused() -> None:
    """It may come with a heartbeat, and is read with each pull."""
    tags = [f"t{number:04}" for number in range(10_000)]
    codes = tags_codes("||".join(tags))
    assert codes is not None
    assert len(codes) == 10_000
    with pytest.raises(IllegalMessageError, match="10001 tags where 10000 are allowed"):
        tags_codes("||".join([*tags, "x"]))
    assert tags_codes("t" * 131_072) is not None
    with pytest.raises(IllegalMessageError, match="131073 bytes where 131072 are allowed"):
        tags_codes("t" * 131_073)
