"""How far all groups have read, against tables whose positions are plain arithmetic."""

from collections.abc import Callable, Generator, Iterator
from itertools import islice

import pytest

from mailboat.broker.reading_progress import (
    MEMBERS_RETURN_S,
    SERIES_MAX,
    GroupProgress,
    ReadingProgress,
)
from mailboat.model.names import retry_topic
from mailboat.store.queue_table import RaisedQueue
from mailboat.testing.virtual_time import VirtualTime

RECORD = 100
END = 1_000_000


class Tables:
    """Offsets, queues and members of a broker; a message's position is its offset times 100."""

    def __init__(self) -> None:
        """Know nothing."""
        self.commits = 0
        self.lowered = 0
        self.removals = 0
        self.end = END
        self.clock = VirtualTime()
        self.table: dict[tuple[str, str], dict[int, int]] = {}
        self.bounds: dict[tuple[str, int], tuple[int, int]] = {}
        self.changes = 0
        self.on_subscribed: Callable[[str], None] = lambda _: None
        self._members: dict[str, frozenset[str]] = {}
        self.broken: set[tuple[str, int]] = set()
        self.readable: dict[str, int] = {}
        self.positions_asked = 0

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Commit as `ConsumerOffsetManager` does."""
        queues = self.table.setdefault((group, topic), {})
        self.commits += 1
        if queue_offset < queues.get(queue_id, 1 << 60):
            self.lowered += 1
        queues[queue_id] = queue_offset

    def remove(self, group: str, topic: str) -> None:
        """Forget offsets as `ConsumerOffsetManager` does."""
        del self.table[group, topic]
        self.removals += 1

    def groups(self) -> set[str]:
        """Return every group that has offsets."""
        return {group for group, _ in self.table}

    def topics_of(self, group: str) -> set[str]:
        """Return the topics in which a group has offsets."""
        return {topic for found, topic in self.table if found == group}

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that have offsets in a topic."""
        return {group for group, found in self.table if found == topic}

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's offsets in a topic."""
        return self.table.get((group, topic), {})

    @property
    def members(self) -> dict[str, frozenset[str]]:
        """What members subscribe to, by group."""
        return self._members

    @members.setter
    def members(self, members: dict[str, frozenset[str]]) -> None:
        self._members = members
        self.changes += 1
        for group in members:
            self.on_subscribed(group)

    def clustering_groups(self) -> list[str]:
        """Return the groups with members."""
        return list(self._members)

    def clustering_topics(self, group: str) -> frozenset[str]:
        """Return what a group subscribes to."""
        return self._members.get(group, frozenset())

    def groups_on_topic(self, topic: str) -> set[str]:
        """Return the groups that subscribe to a topic."""
        return {group for group, topics in self._members.items() if topic in topics}

    def queue_keys(self) -> list[tuple[str, int]]:
        """Return every queue."""
        return list(self.bounds)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the lower bound."""
        return self.bounds[topic, queue_id][0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the upper bound."""
        return self.bounds[topic, queue_id][1]

    def physical_position(
        self, topic: str, queue_id: int, queue_offset: int
    ) -> Generator[None, None, int | None]:
        """Return a position, or fail where the file is broken."""
        yield from ()
        self.positions_asked += 1
        if (topic, queue_id) in self.broken:
            raise OSError(5, "broken")
        return queue_offset * RECORD + queue_id


@pytest.fixture
def tables() -> Tables:
    """Return a topic T with two queues that hold the offsets 10 to 50."""
    tables = Tables()
    tables.bounds = {("T", 0): (10, 50), ("T", 1): (10, 50)}
    return tables


def new_progress(tables: Tables) -> ReadingProgress:
    """Return the progress before its first round."""
    progress = ReadingProgress(
        tables,
        tables,
        tables,
        lambda: tables.end,
        lambda topic: tables.readable.get(topic, 100),
        tables.clock.monotonic,
    )
    tables.on_subscribed = progress.subscribed
    return progress


def progress_of(tables: Tables) -> ReadingProgress:
    """Return the progress after one round."""
    progress = new_progress(tables)
    finish(progress)
    return progress


def finish(progress: ReadingProgress) -> int:
    """Do one round; return how many slices it had."""
    return sum(1 for _ in progress.slices())


def begin_round(progress: ReadingProgress) -> Iterator[None]:
    """Return the slices of a round that has looked which groups there are."""
    slices = progress.slices()
    for _ in range(3):
        next(slices)
    return slices


def test_without_a_group_nothing_is_read(tables: Tables) -> None:
    """A log that nobody has consumed yet is unread, not read by all of nobody."""
    assert progress_of(tables).position() == 0


def test_a_group_at_the_end_of_every_queue_has_read_the_log(tables: Tables) -> None:
    """Its position is the end of what was dispatched when the round began."""
    tables.commit("g", "T", 0, 50)
    tables.commit("g", "T", 1, 50)
    progress = progress_of(tables)
    assert progress.position() == END
    assert progress.groups == []


def test_the_oldest_unread_message_of_all_groups_counts(tables: Tables) -> None:
    """The minimum over groups and their queues; each group shows its own and its whole lag."""
    for group, offsets in (("a", (30, 20)), ("b", (50, 40))):
        for queue_id, queue_offset in enumerate(offsets):
            tables.commit(group, "T", queue_id, queue_offset)
    progress = progress_of(tables)
    assert progress.position() == 20 * RECORD + 1
    assert progress.groups == [
        GroupProgress("a", "T", 1, 20 * RECORD + 1, (50 - 30) + (50 - 20)),
        GroupProgress("b", "T", 1, 40 * RECORD + 1, 10),
    ]


def test_a_queue_without_an_offset_is_unread_from_its_start(tables: Tables) -> None:
    """The group has read the topic, and nothing says that it has read this queue."""
    tables.commit("g", "T", 0, 50)
    assert progress_of(tables).position() == 10 * RECORD + 1


def test_a_member_without_an_offset_has_read_nothing(tables: Tables) -> None:
    """A consumer that has just joined is to get everything that is there."""
    tables.members = {"g": frozenset({"T"})}
    assert progress_of(tables).position() == 10 * RECORD


def test_an_offset_below_the_queue_begins_at_the_queue(tables: Tables) -> None:
    """What is gone cannot be unread any more."""
    tables.commit("g", "T", 0, 0)
    tables.commit("g", "T", 1, 50)
    [group] = progress_of(tables).groups
    assert (group.physical_offset, group.unread_messages) == (10 * RECORD, 40)


def test_a_retry_topic_is_unread_from_its_start(tables: Tables) -> None:
    """A message sent back by a group that then went away was read by nobody."""
    for queue_id in (0, 1):
        tables.commit("g", "T", queue_id, 50)
    tables.bounds[retry_topic("g"), 0] = (7, 9)
    assert progress_of(tables).position() == 7 * RECORD


def test_a_topic_without_groups_holds_nothing_back(tables: Tables) -> None:
    """Only retention by time covers what no group consumes."""
    for queue_id in (0, 1):
        tables.commit("g", "T", queue_id, 50)
    tables.bounds["other", 0] = (0, 5)
    assert progress_of(tables).position() == END


def test_a_queue_that_cannot_be_read_holds_everything_back(tables: Tables) -> None:
    """Unknown is not read."""
    tables.commit("g", "T", 0, 40)
    tables.broken.add(("T", 0))
    assert progress_of(tables).position() == 0


def test_nothing_counts_as_read_once_an_offset_went_back(tables: Tables) -> None:
    """Until the next round, which sees where it went."""
    for queue_id in (0, 1):
        tables.commit("g", "T", queue_id, 50)
    progress = progress_of(tables)
    tables.commit("g", "T", 0, 20)
    assert (progress.is_current, progress.position()) == (False, 0)
    finish(progress)
    assert (progress.is_current, progress.position()) == (True, 20 * RECORD)


def test_nothing_counts_as_read_once_a_group_came(tables: Tables) -> None:
    """A member that leaves, or an offset that moves on, changes nothing for the worse."""
    for queue_id in (0, 1):
        tables.commit("g", "T", queue_id, 50)
    tables.members = {"g": frozenset({"T"})}
    progress = progress_of(tables)
    tables.members = {}
    tables.commit("g", "T", 0, 60)
    assert progress.position() == END
    tables.members = {"new": frozenset({"T"})}
    assert progress.position() == 0
    finish(progress)
    assert progress.position() == 10 * RECORD


def test_a_round_that_is_not_finished_changes_nothing(tables: Tables) -> None:
    """Retention works with the last whole round."""
    tables.commit("g", "T", 0, 50)
    progress = progress_of(tables)
    before = (progress.position(), progress.groups)
    tables.commit("g", "T", 1, 50)
    tables.lowered -= 1
    for _ in islice(progress.slices(), 1):
        assert (progress.position(), progress.groups) == before


def test_many_queues_are_looked_at_in_slices() -> None:
    """A slice is a few hundred looks at most, however many queues and groups there are."""
    tables = Tables()
    tables.bounds = {("T", queue_id): (0, 9) for queue_id in range(5_000)}
    for group in range(4):
        tables.commit(f"g{group}", "T", 0, 0)
    progress = new_progress(tables)
    asked = []
    for _ in progress.slices():
        asked.append(tables.positions_asked)
        tables.positions_asked = 0
    assert sum(asked) <= 20_000
    assert max(asked) <= 250
    assert len(progress.groups) == 4


def test_what_goes_unread_is_counted_by_group_and_topic(tables: Tables) -> None:
    """From the group's offset up to the new lower bound of each queue."""
    tables.commit("slow", "T", 0, 20)
    tables.commit("fast", "T", 0, 50)
    tables.commit("fast", "T", 1, 50)
    progress = progress_of(tables)
    progress.removed([RaisedQueue("T", 0, 10, 35), RaisedQueue("T", 1, 10, 35)])
    assert progress.lost == {("slow", "T"): 15 + 25}
    progress.removed([RaisedQueue("T", 0, 35, 36)])
    assert progress.lost == {("slow", "T"): 41}
    progress.removed([RaisedQueue("other", 0, 0, 100)])
    assert progress.lost == {("slow", "T"): 41}


def test_series_of_losses_are_bounded(tables: Tables) -> None:
    """Further groups share one sum, and how many they are is known."""
    for group in range(SERIES_MAX + 3):
        tables.commit(f"g{group:04}", "T", 0, 10)
    progress = progress_of(tables)
    for _ in range(2):
        progress.removed([RaisedQueue("T", 0, 10, 15)])
    assert len(progress.lost) == SERIES_MAX
    assert (progress.lost_elsewhere, len(progress.dropped_series)) == (3 * 5 * 2, 3)


def test_a_large_loss_is_counted_in_slices() -> None:
    """The first part at once, the rest with the next round."""
    tables = Tables()
    queues = 3_000
    tables.bounds = {("T", queue_id): (0, 9) for queue_id in range(queues)}
    for group in range(10):
        tables.commit(f"g{group}", "T", 0, 0)
    progress = progress_of(tables)
    progress.removed([RaisedQueue("T", queue_id, 0, 2) for queue_id in range(queues)])
    assert 0 < sum(progress.lost.values()) < 10 * queues * 2
    finish(progress)
    assert sum(progress.lost.values()) == 10 * queues * 2


def test_what_the_broker_still_needs_itself_is_not_read(tables: Tables) -> None:
    """Delayed messages count as unread, at once and without another round."""
    tables.commit("G", "T", 0, 50)
    tables.commit("G", "T", 1, 50)
    progress = progress_of(tables)
    needed: list[int | None] = [None, 700, 900]
    progress.also_unread += [lambda: needed[0], lambda: needed[1], lambda: needed[2]]
    assert progress.position() == 700
    needed[:] = [None, None, None]
    assert progress.position() > 900


# -- after a restart ------------------------------------------------------------------------------


def read_to_the_end(tables: Tables) -> None:
    """Let one group have read everything."""
    for queue_id in (0, 1):
        tables.commit("g", "T", queue_id, 50)


def test_nothing_goes_before_the_members_can_be_back(tables: Tables) -> None:
    """A client finds the broker within 30 s and introduces itself within 30 s more."""
    read_to_the_end(tables)
    progress = new_progress(tables)
    tables.clock.advance(500)
    progress.await_members()
    finish(progress)
    assert progress.position() == 0
    tables.clock.advance(30 + 30)
    assert progress.position() == 0
    tables.clock.advance(MEMBERS_RETURN_S - 60)
    assert progress.position() == END


def test_what_is_known_to_be_read_is_shown_before_the_members_are_back(tables: Tables) -> None:
    """A forecast must not take all for unread because of a restart."""
    read_to_the_end(tables)
    tables.commit("g", "T", 0, 20)
    progress = new_progress(tables)
    progress.await_members()
    finish(progress)
    assert (progress.position(), progress.known_position()) == (0, 20 * RECORD)


def test_a_member_that_comes_back_in_time_keeps_what_it_has_not_read(tables: Tables) -> None:
    """Nobody but its subscription says that the group exists."""
    read_to_the_end(tables)
    progress = new_progress(tables)
    progress.await_members()
    finish(progress)
    tables.clock.advance(59)
    tables.members = {"late": frozenset({"T"})}
    tables.clock.advance(MEMBERS_RETURN_S)
    assert progress.position() == 0
    finish(progress)
    assert progress.position() == 10 * RECORD


# -- when to look ---------------------------------------------------------------------------------


def test_a_round_is_due_at_once_where_the_result_is_not_current(tables: Tables) -> None:
    """At the start, and when an offset went back."""
    progress = new_progress(tables)
    assert progress.is_round_due
    read_to_the_end(tables)
    finish(progress)
    assert not progress.is_round_due
    tables.commit("g", "T", 0, 20)
    assert progress.is_round_due


def test_nobody_looks_while_nothing_moves(tables: Tables) -> None:
    """An idle broker rests."""
    read_to_the_end(tables)
    progress = progress_of(tables)
    tables.clock.advance(1_000_000)
    assert not progress.is_round_due


def commit_on(tables: Tables) -> None:
    """Let the group read on."""
    tables.commit("g", "T", 0, 60)


def remove_group(tables: Tables) -> None:
    """Remove a group that has not read its messages."""
    tables.remove("dead", "T")


def end_subscription(tables: Tables) -> None:
    """Let a group's last member go."""
    tables.members = {}


def send(tables: Tables) -> None:
    """Store messages."""
    tables.end += RECORD


@pytest.mark.parametrize("move", [commit_on, remove_group, end_subscription, send])
def test_what_moves_is_looked_at_within_five_seconds(
    tables: Tables, move: Callable[[Tables], None]
) -> None:
    """At once when retention asks: whatever may let go of messages counts."""
    read_to_the_end(tables)
    tables.commit("dead", "T", 0, 20)
    tables.members = {"hung": frozenset({"T"})}
    progress = progress_of(tables)
    move(tables)
    assert not progress.is_round_due
    tables.clock.advance(4.9)
    assert not progress.is_round_due
    tables.clock.advance(0.1)
    assert progress.is_round_due
    finish(progress)
    tables.end += RECORD
    progress.ask_for_round()
    assert progress.is_round_due


def test_who_asks_is_served_once_a_second_though_nothing_seems_to_move(tables: Tables) -> None:
    """A deleted topic is in no counter; asking all the time must not be looking all the time."""
    tables.commit("g", "T", 0, 50)
    tables.commit("g", "T", 1, 10)
    progress = progress_of(tables)
    del tables.bounds["T", 1]
    progress.ask_for_round()
    assert not progress.is_round_due
    tables.clock.advance(1)
    assert progress.is_round_due
    finish(progress)
    assert progress.position() == END
    tables.clock.advance(1)
    assert not progress.is_round_due


def test_a_removed_group_lets_go(tables: Tables) -> None:
    """With the next round only the others count."""
    read_to_the_end(tables)
    tables.commit("dead", "T", 0, 20)
    progress = progress_of(tables)
    assert progress.position() == 10 * RECORD + 1
    tables.remove("dead", "T")
    finish(progress)
    assert progress.position() == END


def test_a_group_that_comes_during_a_round_is_protected_at_once(tables: Tables) -> None:
    """The round does not know it, so neither its result nor the one before counts."""
    read_to_the_end(tables)
    progress = progress_of(tables)
    round_ = begin_round(progress)
    assert progress.position() == END
    tables.members = {"new": frozenset({"T"})}
    assert progress.position() == 0
    for _ in round_:
        assert progress.position() == 0
    assert progress.position() == 0
    finish(progress)
    assert progress.position() == 10 * RECORD


def test_a_group_that_the_round_has_seen_may_leave_and_come_back(tables: Tables) -> None:
    """A consumer that is started anew every minute must not keep retention from going by what is
    read."""
    read_to_the_end(tables)
    subscribed = {"g": frozenset({"T"})}
    tables.members = subscribed
    progress = progress_of(tables)
    for _ in range(2):
        tables.members = {}
        tables.members = subscribed
        assert progress.position() == END
    tables.members = {"g": frozenset({"T", "U"})}
    assert progress.position() == 0


def test_a_group_that_leaves_during_a_round_is_looked_at_when_it_comes_back(tables: Tables) -> None:
    """The round before knew it, this one found it gone: what is published must know it again."""
    tables.bounds |= {("T", queue_id): (10, 50) for queue_id in range(2, 200)}
    for queue_id in range(200):
        tables.commit("g", "T", queue_id, 50)
    subscribed = {"late": frozenset({"T"})}
    tables.members = subscribed
    progress = progress_of(tables)
    tables.members = {}
    round_ = begin_round(progress)
    tables.members = subscribed
    done = progress.rounds_done
    while progress.rounds_done == done:
        assert progress.position() == 10 * RECORD
        next(round_)
    assert progress.position() == 0


def test_what_no_route_leads_to_is_unread_and_holds_up_nothing(tables: Tables) -> None:
    """A topic that had two queues has one: messages in the other one are lag until they go."""
    tables.commit("a", "T", 0, 30)
    tables.commit("a", "T", 1, 20)
    tables.readable["T"] = 1
    progress = progress_of(tables)
    assert progress.groups == [GroupProgress("a", "T", 0, 30 * RECORD, (50 - 30) + (50 - 20))]
    assert progress.position() == 30 * RECORD
    tables.commit("a", "T", 0, 50)
    finish(progress)
    assert progress.position() == END
    assert progress.groups == [GroupProgress("a", "T", 1, END, 30)]
