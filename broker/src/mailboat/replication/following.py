"""A follower: it takes what its leader sends, in order, and says how far it has it."""

from mailboat.replication.actions import Alarm, BeginLog, CutLog, ResetLog, WriteLog
from mailboat.replication.epochs import consistent_end
from mailboat.replication.frames import Ack, Beat, Data, Frame, Hello, Refused, Welcome
from mailboat.replication.lease import Member
from mailboat.replication.state import ReplicaState


class Following:
    """One session with one leader; joined once the logs agree."""

    def __init__(self, replica: ReplicaState, ordinal: int) -> None:
        """Begin a session with whoever is at an ordinal."""
        self._replica = replica
        self._ordinal = ordinal
        self._session = 0
        self._heard_s = replica.now_s
        self._beat = 0
        self._granted = 0
        self._acked_end = -1
        self._has_left = False
        self._end_at_beat = -1
        self._epoch_start = 0
        self.leader_end = 0
        """How far the leader's log is known to go."""

        self.epoch = 0
        self.is_joined = False

    @property
    def session(self) -> int:
        """The number of the session."""
        return self._session

    @property
    def is_lost(self) -> bool:
        """Whether nothing was heard of the leader for too long."""
        return self._replica.now_s >= self._heard_s + self._replica.times.lost_s

    def say_hello(self) -> None:
        """Ask to be taken up."""
        replica = self._replica
        self._session = replica.next_number()
        hello = Hello(self._session, replica.durable.seen, replica.settings.boot)
        replica.send(self._ordinal, hello)

    def received(self, sender: Member, frame: Frame) -> None:
        """Take a frame; one of another session, place or epoch is too late."""
        match frame:
            case Welcome() if frame.session == self._session and not self.is_joined:
                self._welcomed(frame)
            case Data() | Beat() if frame.epoch < self._replica.durable.seen:
                self._replica.send(sender.ordinal, Refused(self._replica.durable.seen))
            case Data() if self._is_mine(frame):
                self._heard_s = self._replica.now_s
                self._take(frame)
            case Beat() if self._is_mine(frame) and frame.number > self._beat:
                self._heard_s = self._replica.now_s
                self._follow_beat(frame)

    def acknowledge(self, *, even_if_same: bool = False) -> None:
        """Say how far the log is as durable as the group wants it."""
        end = self._replica.kept_end
        if self.is_joined and (even_if_same or end > self._acked_end):
            self._acked_end = end
            settings = self._replica.settings
            is_whole = settings.by_hand is None or self._replica.durable.is_whole
            counts = is_whole and not self._has_left
            ack = Ack(self._session, self.epoch, end, self._granted, counts)
            self._replica.send(self._ordinal, ack)

    def note_link(self, peer: Member) -> None:
        """Begin again where the log ends: with the former link some of what was sent is lost."""
        if self.is_joined and peer.ordinal == self._ordinal:
            self._replica.say_hello(self._ordinal)

    def leave(self) -> None:
        """Count for nothing from now on."""
        self._has_left = True
        self.acknowledge(even_if_same=True)

    def _is_mine(self, frame: Data | Beat) -> bool:
        return self.is_of(frame.session, frame.epoch)

    def is_of(self, session: int, epoch: int) -> bool:
        """Tell whether a frame belongs to this session."""
        return self.is_joined and (session, epoch) == (self._session, self.epoch)

    def _welcomed(self, welcome: Welcome) -> None:
        """Cut off what the leader does not have, then take over its epochs."""
        replica = self._replica
        durable = replica.durable
        if welcome.epoch < durable.seen:
            replica.send(self._ordinal, Refused(durable.seen))
            return
        end = consistent_end(durable.epochs, replica.end, welcome.epochs, welcome.end)
        is_foreign = durable.group not in ("", welcome.group)
        if is_foreign or end is None or (replica.end and end < welcome.start):
            replica.act(ResetLog())
            replica.stop("the log has nothing in common with the leader's")
            return
        if end < replica.end:
            confirmed = max(replica.confirmed, durable.confirmed)
            if end < confirmed and not replica.settings.is_sync_master:
                # Whoever led had shown what no other one has: a cut does not take that back.
                replica.act(ResetLog())
                replica.stop(f"the leader of epoch {welcome.epoch} has the log up to {end} only")
                return
            if end < confirmed:
                replica.is_halted = True
                text = f"the leader of epoch {welcome.epoch} has the log up to {end} only"
                replica.act(Alarm(f"{text}, and below {confirmed} it was confirmed"))
                return
            # Durable before the epochs are: they say that the log is a prefix of the leader's.
            replica.act(CutLog(end))
            replica.end = replica.flushed_end = end
        if replica.end < welcome.start:
            replica.act(BeginLog(welcome.start))
            replica.end = replica.flushed_end = welcome.start
        joined = durable._replace(seen=welcome.epoch, epochs=welcome.epochs, group=welcome.group)
        if joined != durable:
            replica.persist(joined)
        self.epoch = welcome.epoch
        self._epoch_start = welcome.epochs[-1].start
        self.leader_end = welcome.end
        self.is_joined = True
        self._heard_s = replica.now_s
        self.acknowledge(even_if_same=True)

    def _take(self, data: Data) -> None:
        replica = self._replica
        if data.physical_offset > replica.end:
            # Something between was lost: begin again where the log ends.
            replica.say_hello(self._ordinal)
        elif data.physical_offset == replica.end:
            replica.act(WriteLog(data.physical_offset, data.end, data.records))
            replica.end = data.end
            self.acknowledge()
            replica.confirm(min(data.confirmed, data.end))

    def _follow_beat(self, beat: Beat) -> None:
        replica = self._replica
        self._beat = beat.number
        self.leader_end = beat.end
        if beat.is_heard:
            replica.promised_until_s = replica.now_s + replica.times.promise_s
            self._granted = beat.number
        if beat.has_authority:
            replica.authority_heard_until_s = replica.now_s + replica.times.grant_s
        replica.confirm(min(beat.confirmed, replica.end))
        # The leader may not know how much of what it began with is confirmed.
        if replica.kept_end >= max(self._epoch_start, beat.confirmed):
            if replica.is_suspect:
                replica.trust()
            if replica.knows_newest and not replica.durable.is_whole:
                replica.persist(replica.durable._replace(is_whole=True))
        self.acknowledge(even_if_same=True)
        if beat.end > replica.end == self._end_at_beat:
            # What was sent between two beats has not come: begin again where the log ends.
            replica.say_hello(self._ordinal)
        self._end_at_beat = replica.end
