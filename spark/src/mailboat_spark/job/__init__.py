"""`mailboat-job`: topics to a partitioned Parquet table, as a stream or up to now.

`options` is pure and typed; `command` reads them from the command line and the environment;
`settings` and `executors` turn them into Spark settings; `fence` lets one driver at a time write;
`table` and `checkpoint` know the files, `pairing` whether they belong together; `progress`,
`metrics` and `endpoints` tell how the job is; `runner` puts it together and ends it in order.
"""
