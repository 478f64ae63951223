"""What an acknowledgement means, word for word; the help texts quote it and tests hold it."""

from typing import Final

ASYNC_FLUSH: Final = (
    "SEND_OK: the whole record, with its checksum, has been handed to the operating system of the"
    " master. It survives the end of the broker process by any cause (kill -9, OOM kill, upgrade)."
    " It may not survive a power cut, kernel crash or loss of the machine. What can be lost is only"
    " the newest messages: those acknowledged after the start of the last finished flush, at most"
    " `flushIntervalCommitLog` (500 ms) plus one disk flush; `unflushed_bytes` and"
    " `unflushed_age_seconds` show that window at any time. What remains is a gap-free prefix of"
    " every queue. After such a loss an offset a consumer had already read may later hold another"
    " message."
)

SYNC_FLUSH: Final = (
    "SEND_OK: fdatasync covering the record returned success on the master's disk. It survives"
    " process end, kernel crash and power cut of that machine, for a disk that honours flushes and"
    " is not itself lost. A message becomes visible to consumers only once it is flushed, so a"
    " consumer never sees a message that later disappears or changes."
)

UNKNOWN: Final = (
    "Unknown. The message may or may not be stored and may become visible later. Retrying is safe"
    " for the data and can produce a second copy with the same UNIQ_KEY. We never answer SEND_OK"
    " for it afterwards."
)

REFUSED: Final = "Nothing of this request is stored, and nothing of it will appear later."

ONE_BAD_PEER: Final = (
    "Whatever one connection sends, leaves unsent or does not read, others are served: nothing that"
    " a request asks for holds the event loop longer than 50 ms, and the bytes kept for unfinished"
    " requests and unread answers stay below `unsentBudgetBytes` per broker. Whatever a client says"
    " is stored only in a form that recovery, rebuild and every reader understand."
)

HELP_TEXT: Final = f"""What SEND_OK promises:

flushDiskType=ASYNC_FLUSH (default). {ASYNC_FLUSH}

flushDiskType=SYNC_FLUSH. {SYNC_FLUSH}

FLUSH_DISK_TIMEOUT (10), no answer, broken connection. {UNKNOWN}

Any other error code. {REFUSED}

One bad peer. {ONE_BAD_PEER}"""
"""The end of the help texts of the commands that run a broker."""
