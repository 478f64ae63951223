"""Lets Spark find the data source `mailboat` by itself: no `spark.dataSource.register` is needed.

Spark imports every top-level module called `pyspark_*` and looks for this name.
"""

from mailboat_spark.source import MailboatDataSource as DefaultSource

__all__ = ["DefaultSource"]
