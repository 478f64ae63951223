"""HTTP requests by tokens of Kubernetes: whose they are is the API server's to say."""

import asyncio
import base64
import json
import logging
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from http_matrix import PRODUCE
from kube_stub import KubeStub
from locked_http import TOPIC, LockedHttp, basic, bearer, locked_http
from real_time import at_most_s

from mailboat.config import load_settings
from mailboat.errors import ConfigError
from mailboat.security import guard
from mailboat.web import token_review

ACCOUNT = "system:serviceaccount:shop:dashboard"
DASHBOARD = "system.serviceaccount.shop.dashboard"
TOPICS = "/api/v1/topics"
_BEGAN_S = time.time()


def token(number: int, lasts_s: float = 3600) -> str:
    """Return a token that has the form of one."""
    claims = json.dumps({"exp": _BEGAN_S + lasts_s, "n": number}).encode()
    payload = base64.urlsafe_b64encode(claims).decode().rstrip("=")
    return f"eyJhbGciOiJSUzI1NiJ9.{payload}.c2lnbmF0dXJl"


@pytest.fixture
async def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeStub]:
    """Run an API server."""
    async with KubeStub(tmp_path / "kube", monkeypatch) as stub:
        yield stub


@pytest.fixture
async def http(tmp_path: Path, kube: KubeStub) -> AsyncIterator[LockedHttp]:
    """Run a port that has tokens reviewed, with a user who may send to the topic."""
    options = {"httpTokenReview": "true", "kubeApiFolder": kube.pod("broker")}
    async with locked_http(tmp_path, **options) as port:
        port.users.add(DASHBOARD, (f"Topic:{TOPIC}", "Pub"))
        yield port


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pause after many failures last for longer than a busy machine takes for a test."""
    monkeypatch.setattr(guard, "_FIRST_PAUSE_S", 600.0)
    monkeypatch.setattr(guard, "PAUSE_MAX_S", 600.0)


async def produce(http: LockedHttp, of: str) -> int:
    """Send a message by a token, and return the status."""
    path = PRODUCE[1].replace("{topic}", TOPIC)
    body = {"messages": [{"body": "x"}]}
    return (await http.ask("POST", path, bearer(of), body))[0]


async def test_a_bearer_is_the_user_of_that_name(http: LockedHttp, kube: KubeStub) -> None:
    """It may do what that user's rules allow, and each token is asked about once."""
    kube.bearers[token(1)] = (ACCOUNT, ["mailboat"])
    for _ in range(3):
        assert await produce(http, token(1)) == 200
        status, answer, _ = await http.ask("GET", TOPICS, bearer(token(1)))
        assert status == 403
        assert answer["error"].startswith(f"User:{DASHBOARD} has no permission to access Topic:*")
    assert kube.reviewed == [token(1)]
    # Those that there are anyway are shown to nobody.
    assert (await http.ask("GET", TOPICS, bearer()))[0] == 200
    assert (await http.ask("GET", TOPICS, basic("root")))[0] == 200
    assert kube.reviewed == [token(1)]


async def test_who_is_no_user_here_gets_nothing(http: LockedHttp, kube: KubeStub) -> None:
    """All alike: for somebody else, of nobody, of an unknown or disabled user, of no account."""
    http.users.add("system.serviceaccount.shop.off", is_super=True)
    http.users.change("system.serviceaccount.shop.off", is_enabled=False)
    http.users.add("system.serviceaccount.a.b.c", is_super=True)
    named = [
        "system:serviceaccount:shop:other",
        "system:serviceaccount:shop:off",
        # What others may be called there.
        "root",
        "system.serviceaccount.shop.dashboard",
        "system:serviceaccount:a.b:c",
        "x:system:serviceaccount:shop:dashboard",
        "",
    ]
    for number, name in enumerate(named):
        kube.bearers[token(number)] = (name, ["mailboat"])
    kube.bearers[token(97)] = (ACCOUNT, ["https://kubernetes.default.svc"])
    before, texts = http.state(), set()
    for number in (*range(len(named)), 97, 98):
        status, answer, sent = await http.ask("GET", TOPICS, bearer(token(number)))
        assert (status, sent["WWW-Authenticate"]) == (401, "Bearer"), number
        texts.add(answer["error"])
    _, answer, _ = await http.ask("GET", TOPICS, bearer("another-token-than-that"))
    assert texts == {answer["error"]}
    assert http.state() == before


async def test_a_token_that_may_be_for_anybody_is_not_taken(
    http: LockedHttp, kube: KubeStub
) -> None:
    """The answer has to say that it was made for this."""
    kube.knows_no_audiences = True
    kube.bearers[token(1)] = (ACCOUNT, [])
    assert await produce(http, token(1)) == 401


@pytest.mark.parametrize(
    "text", ["a" * 16, "a.b", "a.b.c.d", "a b.c.d", "..", f"a.{'b' * 8192}.c", "é.b.c"]
)
async def test_what_is_no_token_is_shown_to_nobody(
    http: LockedHttp, kube: KubeStub, text: str
) -> None:
    """Strangers do not reach the API server with whatever they send."""
    assert (await http.ask("GET", TOPICS, bearer(text)))[0] in (400, 401)
    assert kube.reviewed == []


async def test_changes_of_the_user_count_at_once(http: LockedHttp, kube: KubeStub) -> None:
    """What is remembered is whose the token is, not what that user may do."""
    kube.bearers[token(1)] = (ACCOUNT, ["mailboat"])
    assert await produce(http, token(1)) == 200
    http.users.change(DASHBOARD, is_enabled=False)
    assert await produce(http, token(1)) == 401
    http.users.change(DASHBOARD, is_enabled=True, is_super=True)
    assert (await http.ask("GET", TOPICS, bearer(token(1))))[0] == 200


async def test_a_token_is_forgotten_after_a_minute_or_when_it_ends(
    http: LockedHttp, kube: KubeStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was taken back gets in no longer; its own end counts if it is earlier."""
    monkeypatch.setattr(token_review, "KNOWN_S", 0.05)
    long, short = token(1), token(2, lasts_s=-1)
    for one in (long, short):
        kube.bearers[one] = (ACCOUNT, ["mailboat"])
        assert await produce(http, one) == 200
    assert await produce(http, short) == 200
    assert kube.reviewed == [long, short, short]
    del kube.bearers[long]
    async with asyncio.timeout(10):
        while await produce(http, long) != 401:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_api_server_that_does_not_answer_lets_nobody_in(
    http: LockedHttp,
    kube: KubeStub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """503, also where it refuses the question; who was known before is known on."""
    monkeypatch.setattr(token_review, "_TIMEOUT_S", 0.2)
    kube.bearers[token(1)] = kube.bearers[token(2)] = (ACCOUNT, ["mailboat"])
    assert await produce(http, token(1)) == 200
    with caplog.at_level(logging.WARNING):
        for status in (403, 500, 200):
            kube.answers = status
            code, answer, sent = await http.ask("GET", TOPICS, bearer(token(2)))
            assert (code, sent["Retry-After"]) == (503, "1")
            assert "the API server does not say" in answer["error"]
        await kube.go_away()
        assert await produce(http, token(2)) == 503
        assert await produce(http, token(1)) == 200
        # A probe answers whoever asks.
        assert (await http.ask("GET", "/livez", bearer(token(2))))[0] == 200
    assert sum("system:auth-delegator" in record.message for record in caplog.records) == 1
    assert token(2) not in caplog.text
    kube.answers = 0
    await kube.come_back()
    assert await produce(http, token(2)) == 200


async def test_few_are_asked_about_at_a_time_and_each_once(
    http: LockedHttp, kube: KubeStub
) -> None:
    """Many requests by one token are one question; beyond the limit requests come again, sooner
    for those of one address."""
    kube.review_waits = asyncio.Event()
    of_one, most = token_review.REVIEWS_OF_ONE_MAX, token_review.REVIEWS_MAX
    for number in range(most):
        kube.bearers[token(number)] = (ACCOUNT, ["mailboat"])

    async def wait_for(asked: int) -> None:
        async with asyncio.timeout(10):
            while len(kube.reviewed) < asked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    waiting = [
        asyncio.create_task(produce(http, token(number)))
        for number in range(of_one)
        for _ in range(3)
    ]
    await wait_for(of_one)
    assert await produce(http, token(99)) == 503
    async with http.from_address("127.0.0.2") as elsewhere:
        waiting += [
            asyncio.create_task(produce(elsewhere, token(number))) for number in range(of_one, most)
        ]
        await wait_for(most)
        async with http.from_address("127.0.0.3") as third:
            assert await produce(third, token(99)) == 503
        kube.review_waits.set()
        assert set(await asyncio.gather(*waiting)) == {200}
    assert sorted(kube.reviewed) == sorted(token(n) for n in range(most))


async def test_all_that_wait_for_one_answer_hear_that_there_is_none(
    http: LockedHttp, kube: KubeStub
) -> None:
    """Each on its own connection, and the next one is answered again."""
    kube.review_waits = asyncio.Event()
    kube.bearers[token(1)] = (ACCOUNT, ["mailboat"])
    waiting = [asyncio.create_task(produce(http, token(1))) for _ in range(10)]
    async with asyncio.timeout(10):
        while not kube.reviewed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    kube.answers = 500
    kube.review_waits.set()
    assert await asyncio.gather(*waiting) == [503] * 10
    kube.answers = 0
    assert await produce(http, token(1)) == 200


@pytest.mark.usefixtures("long_pauses")
async def test_who_fails_often_is_not_asked_about(http: LockedHttp, kube: KubeStub) -> None:
    """For a while; whoever is known from the same address gets in."""
    kube.bearers[token(0)] = (ACCOUNT, ["mailboat"])
    assert await produce(http, token(0)) == 200
    await fail_until_paused(http)
    assert len(kube.reviewed) < 60
    assert await produce(http, token(0)) == 200


async def fail_until_paused(http: LockedHttp) -> None:
    """Send tokens that are nobody's until they are not looked at any more."""
    found = [await produce(http, token(number)) for number in range(1_000, 1_100)]
    assert set(found) == {401, 503}


@pytest.mark.usefixtures("long_pauses")
async def test_strangers_shut_out_nobody_who_was_known(
    http: LockedHttp, kube: KubeStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked about again from the address of strangers; who is new is told to wait."""
    monkeypatch.setattr(token_review, "KNOWN_S", 0.0)
    monkeypatch.setattr(token_review, "_TABLE_MAX", 20)
    kube.bearers[token(0)] = kube.bearers[token(1)] = (ACCOUNT, ["mailboat"])
    assert await produce(http, token(0)) == 200
    await fail_until_paused(http)
    status, answer, sent = await http.ask("GET", TOPICS, bearer(token(1)))
    assert (status, sent["Retry-After"]) == (503, "1")
    assert "cannot be looked at now" in answer["error"]
    for _ in range(3):
        assert await produce(http, token(0)) == 200
    kube.review_waits = asyncio.Event()
    async with http.from_address("127.0.0.2") as elsewhere, http.from_address("127.0.0.3") as third:
        waiting = [
            asyncio.create_task(produce(port, token(2_000 + 10 * number + each)))
            for number, port in enumerate((elsewhere, third))
            for each in range(token_review.REVIEWS_OF_ONE_MAX)
        ]
        before = len(kube.reviewed)
        async with asyncio.timeout(10):
            while len(kube.reviewed) < before + len(waiting):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        mine = asyncio.create_task(produce(http, token(0)))
        async with asyncio.timeout(10):
            while token(0) not in kube.reviewed[before:]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        kube.review_waits.set()
        assert await mine == 200
        assert set(await asyncio.gather(*waiting)) == {401}
    # Taken back it counts as those of strangers do.
    del kube.bearers[token(0)]
    assert await produce(http, token(0)) == 401
    await fail_until_paused(http)
    assert await produce(http, token(0)) == 503


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>please log in</html>",
        "[]",
        "{}",
        '{"status":null}',
        '{"status":{"authenticated":"true"}}',
        '{"status":{"authenticated":true,"user":null,"audiences":["mailboat"]}}',
        '{"status":{"authenticated":true,"user":{"username":"x"},"audiences":"mailboat"}}',
        '{"status":{"x":' + "[" * 100_000,
        "\udcff",
    ],
)
async def test_an_odd_answer_lets_nobody_in(
    http: LockedHttp, kube: KubeStub, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """It says nothing, so nothing can be said."""
    kube.says = text.encode(errors="surrogateescape")
    assert await produce(http, token(1)) == 503
    assert [one.levelname for one in caplog.records if "tokens cannot" in one.message]
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
    kube.says = None
    kube.bearers[token(1)] = (ACCOUNT, ["mailboat"])
    assert await produce(http, token(1)) == 200


@pytest.mark.parametrize(
    "instead",
    ["fifo", b"", b"one\ntwo-of-secrets", b"nul\0-of-secrets", b"\xff-of-secrets", b"x" * 99_999],
)
async def test_own_credentials_that_are_none_let_nobody_in(
    http: LockedHttp,
    kube: KubeStub,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    instead: bytes | str,
) -> None:
    """Whatever lies in the place of this pod's token keeps nobody waiting, and is in no log."""
    own = Path(kube.pod("broker")) / "token"
    kube.bearers[token(1)] = (ACCOUNT, ["mailboat"])
    own.unlink()
    if isinstance(instead, bytes):
        own.write_bytes(instead)
    else:
        os.mkfifo(own)
        # Whoever waits for a writer gets one in the end.
        end = threading.Timer(15, lambda: os.close(os.open(own, os.O_RDWR)))
        end.start()
    begin_s = time.monotonic()
    assert await produce(http, token(1)) == 503
    assert time.monotonic() - begin_s < at_most_s(2, 12)
    assert any("tokens cannot be reviewed" in one.message for one in caplog.records)
    assert "of-secrets" not in caplog.text
    if not isinstance(instead, bytes):
        end.cancel()
        end.join()
    own.unlink()
    own.write_text("token-of-broker\n")
    assert await produce(http, token(1)) == 200


async def test_a_token_may_say_odd_things_of_itself(http: LockedHttp, kube: KubeStub) -> None:
    """Whoever judges it has taken it: it counts for as long as others."""
    payload = base64.urlsafe_b64encode(b'{"x":' + b"[" * 5_000).decode().rstrip("=")
    odd = f"eyJhbGciOiJSUzI1NiJ9.{payload}.c2lnbmF0dXJl"
    kube.bearers[odd] = (ACCOUNT, ["mailboat"])
    for _ in range(2):
        assert await produce(http, odd) == 200
    assert kube.reviewed == [odd]


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
async def test_a_pod_without_credentials_does_not_start(
    tmp_path: Path, kube: KubeStub, missing: str
) -> None:
    """With the file that is missing."""
    folder = Path(kube.pod("broker"))
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match="kubeApiFolder"):
        async with locked_http(tmp_path, httpTokenReview="true", kubeApiFolder=str(folder)):
            pytest.fail("it has started")


def test_a_token_has_to_stand_for_a_user() -> None:
    """Without users nobody could be it."""
    with pytest.raises(ConfigError, match="needs authenticationEnabled=true"):
        load_settings("broker", overrides={"httpTokenReview": "true"})
