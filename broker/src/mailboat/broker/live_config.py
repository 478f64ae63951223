"""Settings changed while the broker runs: all of a request's or none.

Who keeps a copy of a live setting is told here; what reads `settings` anew each time needs nothing.
A change lasts until the process ends: the configuration file is not written.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java (updateBrokerConfig), which takes
unknown keys and bad values silently.
"""

import logging
from collections.abc import Mapping
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.flush_service import FlushService
from mailboat.broker.processors.pull import PullMessageProcessor
from mailboat.broker.processors.send import SendMessageProcessor
from mailboat.broker.processors.send_rounds import SendRounds
from mailboat.config import change_settings, properties_of

_log = logging.getLogger(__name__)

SOURCE: Final = "live"
"""Where `Settings.sources` says that such a value came from."""


def change_live(
    broker: BrokerContext,
    flush: FlushService,
    send_processor: SendMessageProcessor,
    rounds: SendRounds | None,
    pull_processor: PullMessageProcessor,
    changes: Mapping[str, str],
) -> None:
    """Change live settings of a broker and of those of its parts that keep a copy.

    Raises:
        ConfigError: a key is unknown or needs a restart, or a value is bad; nothing is changed.
    """
    before = broker.settings
    after = change_settings(before, changes, SOURCE)
    old_values, new_values = properties_of(before), properties_of(after)
    changed = [key for key in changes if old_values[key] != new_values[key]]
    broker.settings = after
    for key in changed:
        _log.info("setting changed %s=%s, was %s", key, new_values[key], old_values[key])
    if after.store != before.store:
        broker.store.configure(after.store)
        send_processor.configure(after.store)
        if rounds is not None:
            rounds.configure(after.store)
        if broker.replicas is not None:
            broker.replicas.configure(after.store)
        flush.configure(
            interval_s=after.store.flush_interval_commit_log / 1000,
            timeout_s=after.store.sync_flush_timeout / 1000,
        )
    if after.broker != before.broker:
        broker.groups.configure(auto_create=after.broker.auto_create_subscription_group)
        broker.topics.configure(after.broker)
        pull_processor.configure(after.broker)
        broker.registration.configure(after.broker)
