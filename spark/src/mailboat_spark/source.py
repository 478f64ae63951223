"""What Spark calls first: the data source `mailboat`.

Spark makes a new object of it in several short-lived processes, so everything is imported when it
is needed.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from mailboat_spark.batch_reader import MailboatBatchReader
    from mailboat_spark.options import SourceOptions, Use
    from mailboat_spark.stream_reader import MailboatStreamReader


class MailboatDataSource(DataSource):
    """Topics of a mailboat or RocketMQ cluster."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "mailboat"

    def schema(self) -> "StructType":
        """Return the schema of the mode that the options choose."""
        from mailboat_spark.options import parse_schema_options
        from mailboat_spark.schema import default_schema

        mode, include_headers = parse_schema_options(self.options)
        return default_schema(mode, include_headers=include_headers)

    def reader(self, schema: "StructType") -> "MailboatBatchReader":
        """Return the reader of `spark.read`."""
        from mailboat_spark.batch_reader import MailboatBatchReader

        return MailboatBatchReader(self._checked("batch", schema), schema)

    def streamReader(self, schema: "StructType") -> "MailboatStreamReader":
        """Return the reader of `spark.readStream`."""
        from mailboat_spark.stream_reader import MailboatStreamReader

        return MailboatStreamReader(self._checked("stream", schema), schema)

    def _checked(self, use: "Use", schema: "StructType") -> "SourceOptions":
        from mailboat_spark.options import parse_options
        from mailboat_spark.schema import check_schema

        check_schema(schema)
        return parse_options(self.options, use)
