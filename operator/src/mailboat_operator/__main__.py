"""`python -m mailboat_operator`: the operator as a process."""

import asyncio
import logging
import os
import sys

from kubernetes.aio.config import ConfigException

from mailboat.errors import ConfigError
from mailboat_operator.logs import configure_logging
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.planner.name_server import plan_name_server
from mailboat_operator.planner.topic import plan_topic
from mailboat_operator.planner.user import plan_user
from mailboat_operator.reconciler import Planners
from mailboat_operator.runtime import run_operator
from mailboat_operator.settings import load_settings

logger = logging.getLogger("mailboat_operator")


def main() -> int:
    """Read the settings, run, and return the exit code."""
    try:
        settings = load_settings(os.environ)
    except ConfigError as error:
        sys.stderr.write(f"mailboat-operator: {error}\n")
        return error.exit_code
    configure_logging(settings.log_level, settings.log_format)
    planners = Planners(
        broker=plan_broker, name_server=plan_name_server, topic=plan_topic, user=plan_user
    )
    try:
        return asyncio.run(run_operator(settings, planners))
    except ConfigException as error:
        logger.error("there is no way to the API server: %s", error)
        return ConfigError.exit_code


if __name__ == "__main__":
    sys.exit(main())
