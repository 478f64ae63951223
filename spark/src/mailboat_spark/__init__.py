"""Spark data source `mailboat`: topics as streaming and batch DataFrames.

    spark.readStream.format("mailboat")
         .option("namesrv", "127.0.0.1:9876").option("subscribe", "orders").load()

`source` is what Spark meets first; `options`, `offsets`, `schema` and `planning` are pure;
`records` and `batches` turn pulled bytes into Arrow; `client_thread`, `broker_client` and
`range_reader` talk to brokers, `group_offsets` keeps the group's place there; `stream_reader` and
`batch_reader` are the two readers. `java` and `session` start a local Spark, `demo_job` is the job
of `mailboat demo`.

Imports `mailboat.client`, `mailboat.model` and `mailboat.errors` only.
"""
