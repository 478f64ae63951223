"""mailboat: a message broker that speaks RocketMQ's protocol and keeps RocketMQ's files.

The sub-packages are layers, highest first: cli, testing, node, web, broker | namesrv | client,
remoting, store | protocol, filtering, disk, model, config, core, errors. A layer imports only from
below it; `pyproject.toml` states the contracts and `make check` checks them.
"""

from typing import Final

__version__: Final = "0.1.0"
