"""Who leads a group of replicas, what is confirmed, and what a replica does about it: no I/O.

A `Replica` (`mailboat.replication.replica`) is told what happened (`events`) and answers with what
is to be done (`actions`). It knows no socket, file or clock: times come with the events, bytes of
the log are somebody else's. What it rests on:

- A message is confirmed once **every** member of the recorded in-sync set has it under the present
  epoch, and only members of that set can be elected. No clock decides that.
- Holder, epoch and set are one object (`lease`), changed by one compare-and-swap. One whose answer
  was lost is neither done nor not done, until a read shows a newer version.
- Members are volumes, not places: who comes with another `store_id` is another replica.
- Clocks decide when somebody may try to lead, and guard what the set does not confirm: `authority`.

Nothing of the broker uses it yet.
"""
