"""Several brokers on one machine (`--brokers N`): one process each, under one supervisor.

A broker is one event loop, so one core. `plan` says what each process is to be, from the settings
of one broker; `member` is a process seen from both sides; `supervisor` starts, watches, restarts
and ends them.
"""
