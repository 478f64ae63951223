"""What of mqadmin's output may differ between two servers that behave alike."""

from __future__ import annotations

import re

_MASKS = (
    # What the tool says itself of an error, and where in itself it happened.
    (r"\n\tat .*", ""),
    (r"\n\t\.\.\. \d+ more", ""),
    (
        r"\n(See|For more information, please visit the url,) https?://rocketmq\S+( for [^,\n]*)?",
        "",
    ),
    (r"(CODE: \d+\s+DESC: ).*", r"\1TEXT"),
    # Who, where and when.
    (r"/?\b\d+\.\d+\.\d+\.\d+[:@]\d+", "ADDRESS"),
    (r"/\S*/(export|files|msgbodys)\b", r"FOLDER/\1"),
    (r"\b[0-9A-F]{32,}\b", "ID"),
    (r"\b\d+#\d{6,}", "PROCESS"),
    (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,.:]\d+)?", "TIME"),
    (r"\b1[678]\d{11}\b", "MS"),
    (r"\bV\d_\d_\d+\b", "VERSION"),
    # Sizes of records: a checksum, tracing and a wait flag are properties that not all store.
    (r"(storeSize|commitLogOffset|physicOffset|physicSize)=\d+", r"\1=N"),
    (r"(CommitLog Offset:|#MasterCommitLogMaxOffset)\s+\d+", r"\1 N"),
    (r"(MS@\S+@ID@)\d+", r"\1N"),
    (r"(__CRC32#|WAIT|TRACE_ON|MSG_REGION|MIN_OFFSET|MAX_OFFSET|_BORN_TIMESTAMP)=[^,}]*(, )?", ""),
    # How fast it was.
    (r"rt=\d+ms", "rt=N"),
    (r"(Consume TPS|Avg RT): [0-9.]+", r"\1: N"),
    (r"(OK, )\d+", r"\1N"),
    (r"[ \t]+", " "),
    (r" *(\n|$)", r"\1"),
)
_PROPERTIES = re.compile(r"(?<=[Pp]roperties[:=] )\{([^}]*)\}|(?<=[Pp]roperties=)\{([^}]*)\}")


def masked(text: str) -> list[str]:
    """Return the lines of an output without what may differ."""
    for pattern, replacement in _MASKS:
        text = re.sub(pattern, replacement, text)
    text = _PROPERTIES.sub(_sorted_properties, text)
    return [line for line in text.splitlines() if line.strip()]


def _sorted_properties(match: re.Match[str]) -> str:
    names = (match[1] or match[2] or "").strip(", ").split(", ")
    return "{" + ", ".join(sorted(filter(None, names))) + "}"
