"""The message store: CommitLog (the truth), ConsumeQueue and IndexFile (derived from it).

Belongs here: RocketMQ's files byte for byte, their recovery, lookup and expiry. Lower to higher:
segment > commit_log | consume_queue | index_file | checkpoint > dispatch > flush, recovery,
retention, lookup > message_store. Never here: sockets, event loops, threads. Calls that may block
for long go through the `BlockingRunner` that the owner gives, and `MessageStore` is called from one
thread only.
"""
