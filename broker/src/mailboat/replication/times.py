"""How long replicas wait for each other, in seconds of each one's own clock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a group.

    Two replicas never have authority at once as long as no clock runs `lease_s / hold_s`, or
    `promise_s / grant_s`, times as fast as another.
    """

    renew_s: float = 2.0
    """The leader writes the lease, everybody else reads it, so often."""

    hold_s: float = 6.0
    """The leader has authority for so long after it sent a write that was applied."""

    lease_s: float = 9.0
    """Others may try to lead once the lease has not changed for so long."""

    beat_s: float = 0.5
    grant_s: float = 3.0
    """A beat that was granted counts for so long after it was sent."""

    promise_s: float = 4.5
    """Who grants does not try for so long after the beat arrived."""

    evict_s: float = 3.0
    """A member that was silent for so long is dropped from the set."""

    evict_closed_s: float = 1.0
    """A member is dropped from the set once the link to it has been closed for so long."""

    refuse_s: float = 1.0
    """Sends are refused once a member has been silent for so long."""

    lost_s: float = 3.0
    """A follower looks for its leader again after so long a silence."""

    hello_s: float = 0.5
    ask_s: float = 0.3
    """Who wants to lead waits for answers of others for so long."""

    retry_s: float = 0.5
    hand_over_s: float = 1.5
    """Sends wait for a handover for so long at most."""

    @classmethod
    def of_lease(cls, lease_s: float) -> "Times":
        """Return the times of a group whose lease others respect for so long."""
        return cls(renew_s=lease_s * 2 / 9, hold_s=lease_s * 6 / 9, lease_s=lease_s)
