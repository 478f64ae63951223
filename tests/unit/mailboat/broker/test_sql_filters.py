"""Compiled expressions: compiled off the loop, once, and no more of them kept than is said."""

import asyncio
import contextlib
import threading
from functools import partial

import pytest

from mailboat.broker import sql_filters
from mailboat.broker.sql_filters import SqlFilters
from mailboat.errors import BrokerError
from mailboat.filtering.sql.limits import MAX_EXPRESSION_CHARACTERS
from mailboat.protocol.codes import ResponseCode


async def test_an_expression_is_compiled_once_however_many_wait() -> None:
    """Pulls that come with the same expression wait for the same compilation."""
    filters = SqlFilters()
    assert filters.find("a = 1") is None
    await asyncio.gather(*(filters.check("a = 1") for _ in range(5)))
    compiled = filters.find("a = 1")
    assert compiled is not None
    assert compiled.matches({"a": "1"})
    assert not compiled.matches({"a": "2"})
    await filters.check("a = 1")
    assert filters.find("a = 1") is compiled
    assert len(filters) == 1


async def test_many_that_wait_for_one_expression_leave_the_loop_to_others() -> None:
    """A thousand go on in the order in which they came, no more than 64 in a round."""
    filters = SqlFilters()
    told: list[int] = []
    for number in range(1000):
        filters.compile("a = 1", partial(told.append, number))
    most = 0
    while len(told) < 1000:
        before = len(told)
        await asyncio.sleep(0)
        most = max(most, len(told) - before)
    assert most == 64
    assert told == list(range(1000))


async def test_a_wrong_expression_is_refused_at_once_when_it_comes_again() -> None:
    """Clients ask for it again every second, and the answer is kept."""
    filters = SqlFilters()
    with pytest.raises(BrokerError, match="no LIKE") as caught:
        await filters.check("a LIKE 'x'")
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    with pytest.raises(BrokerError, match="no LIKE"):
        filters.find("a LIKE 'x'")


async def test_an_expression_that_is_too_long_is_not_kept() -> None:
    """Nor may it push others out."""
    filters = SqlFilters()
    text = "a = '" + "x" * MAX_EXPRESSION_CHARACTERS + "'"
    with pytest.raises(BrokerError) as caught:
        filters.find(text)
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert len(filters) == 0


async def test_the_last_used_expressions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by characters; what was asked for last stays."""
    monkeypatch.setattr(sql_filters, "MAX_EXPRESSIONS", 3)
    monkeypatch.setattr(sql_filters, "MAX_CHARACTERS", 40)
    filters = SqlFilters()
    for number in range(3):
        await filters.check(f"a = {number}")
    filters.find("a = 0")
    await filters.check("a = 3")
    kept = [number for number in range(4) if filters.find(f"a = {number}") is not None]
    assert kept == [0, 2, 3]
    await filters.check("a = 0 OR a = 1 OR a = 2")
    assert len(filters) == 3
    long_one = "a = 0 OR a = 1 OR a = 2 OR a = 33"
    await filters.check(long_one)
    assert len(filters) == 1
    assert filters.find(long_one) is not None


async def test_compiling_does_not_stop_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens on another thread, one expression at a time; too many waiting ones are refused."""
    threads: list[threading.Thread] = []
    compile_one = sql_filters._compile
    has_begun, may_end = threading.Event(), threading.Event()

    def slow(text: str) -> sql_filters._Outcome:
        threads.append(threading.current_thread())
        has_begun.set()
        assert may_end.wait(10)
        return compile_one(text)

    monkeypatch.setattr(sql_filters, "_compile", slow)
    monkeypatch.setattr(sql_filters, "MAX_WAITING", 8)
    filters = SqlFilters()
    checks = [asyncio.create_task(filters.check(f"a = {number}")) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(BrokerError) as caught:
        await filters.check("a = 4")
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    await asyncio.to_thread(has_begun.wait, 10)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    may_end.set()
    await asyncio.gather(*checks)
    assert len(threads) == 3


async def test_the_worker_rests_after_a_long_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends costly expressions gets a fifth of one processor at most."""
    compile_one = sql_filters._compile
    monkeypatch.setattr(
        sql_filters, "_compile", lambda text: compile_one(text)._replace(took_s=0.1)
    )
    filters = SqlFilters()
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    await asyncio.gather(filters.check("a = 1"), filters.check("a = 2"))
    assert loop.time() - begin_s >= 0.4


async def test_a_bug_of_the_compiler_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits gets an answer, and the log the reason."""

    def broken(text: str) -> sql_filters._Outcome:
        raise RuntimeError("a bug")

    monkeypatch.setattr(sql_filters, "_compile", broken)
    with pytest.raises(BrokerError) as caught:
        await SqlFilters().check("a = 1")
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert "a bug" in caplog.text


@pytest.mark.parametrize("limit", ["MAX_WAITING", "MAX_EXPRESSIONS", "MAX_CHARACTERS"])
async def test_one_address_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """What it asks for waits behind one another's, and pushes out nothing but its own."""
    compiled: list[str] = []
    compile_one = sql_filters._compile

    def note(text: str) -> sql_filters._Outcome:
        compiled.append(text)
        return compile_one(text)

    monkeypatch.setattr(sql_filters, "_compile", note)
    monkeypatch.setattr(sql_filters, limit, 40)
    filters = SqlFilters()
    await filters.check("a = 1", "10.0.0.1")
    wanted = [f"b = {number}" for number in range(100)]
    for text in wanted:
        with contextlib.suppress(BrokerError):
            filters.compile(text, lambda: None, "10.0.0.2")
    await filters.check("c = 1", "10.0.0.3")
    assert compiled.index("c = 1") <= 3
    assert compiled[:2] == ["a = 1", "b = 0"]
    await filters.check(compiled[2] if compiled[2] != "c = 1" else "b = 1", "10.0.0.2")
    while filters._is_running:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)
    assert len(compiled) == len(set(compiled)) == (13 if limit == "MAX_WAITING" else 102)
    for text in ("a = 1", "c = 1", compiled[-1]):
        assert filters.find(text) is not None
    assert filters._places.taken == 0


async def test_who_asks_for_what_another_address_waits_for_need_not_wait_for_that_ones_turn() -> (
    None
):
    """It is compiled once, at the first turn of the two."""
    filters = SqlFilters()
    told: list[str] = []
    for number in range(20):
        filters.compile(f"a = {number}", partial(told.append, f"one {number}"), "10.0.0.1")
    filters.compile("a = 19", partial(told.append, "other 19"), "10.0.0.2")
    await filters.check("a = 18", "10.0.0.1")
    assert told[2:4] == ["one 19", "other 19"]
    assert len(told) == 21
    assert len(filters) == 20
