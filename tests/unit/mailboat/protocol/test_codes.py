"""Tests of mailboat.protocol.codes."""

import pytest

from mailboat.protocol.codes import (
    LANGUAGE_CODES,
    VERSION,
    RequestCode,
    request_code_name,
    response_code_name,
    version_name,
)


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (121, "V3_4_9"),
        (213, "V4_0_0"),
        (232, "V4_1_0_SNAPSHOT"),
        (233, "V4_1_0"),
        (315, "V4_5_1"),
        (333, "V4_6_0"),
        (353, "V4_7_0"),
        (373, "V4_8_0"),
        (393, "V4_9_0"),
        (399, "V4_9_3"),
        (401, "V4_9_4"),
        (407, "V4_9_7"),
        (409, "V4_9_8"),
        (413, "V5_0_0"),
        (433, "V5_1_0"),
        (441, "V5_1_4"),
        (453, "V5_2_0"),
        (473, "V5_3_0"),
        (475, "V5_3_1"),
        (477, "V5_3_2"),
        (478, "V5_3_3_SNAPSHOT"),
        (479, "V5_3_3"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (2147483647, "HIGHER_VERSION"),
        (-1, "BEFORE_V4_1_0(-1)"),
    ],
)
def test_version_ordinals_have_their_release_names(ordinal: int, name: str) -> None:
    """The ordinals are the positions of RocketMQ's MQVersion enum."""
    assert name == version_name(ordinal)


def test_we_claim_a_release_that_every_client_accepts() -> None:
    """The version is 5.3.3 and fits Go's int16."""
    assert "V5_3_3" == version_name(VERSION)
    assert VERSION < 2**15


def test_codes_have_rocketmqs_names() -> None:
    """Names are found by number; numbers without a name stay numbers."""
    assert "SEND_MESSAGE_V2" == request_code_name(310)
    assert "GET_ROUTEINFO_BY_TOPIC" == request_code_name(105)
    assert "9999" == request_code_name(9999)
    assert "TOPIC_NOT_EXIST" == response_code_name(17)
    assert "777" == response_code_name(777)


def test_no_request_code_is_used_twice() -> None:
    """Each name of RequestCode has its own number."""
    codes = [code for code in vars(RequestCode).values() if isinstance(code, int)]
    assert len(codes) == len(set(codes))


def test_languages_have_their_binary_codes() -> None:
    """The codes of the binary header are the positions of RocketMQ's LanguageCode enum."""
    assert (0, 3, 7, 9, 13) == tuple(
        LANGUAGE_CODES[name] for name in ("JAVA", "PYTHON", "OTHER", "GO", "NODE_JS")
    )
