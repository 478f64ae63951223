"""SQL92 subscriptions: an expression over a message's properties, compiled once, asked often.

Import `mailboat.filtering.sql.sql_filter` when the first such expression comes: its parser takes a
tenth of a second and eleven megabytes, which a broker without SQL subscriptions never pays.

RocketMQ's Bloom filters and ConsumeQueue extension files, which spare it reads, are not needed
here: every message is judged by its own properties, in a few microseconds.

Source: apache/rocketmq filter/ @ rocketmq-all-5.5.0.
"""
