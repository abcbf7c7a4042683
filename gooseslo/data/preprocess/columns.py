"""Parquet files and data-set folders: the texts of one column, row by row, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

from gooseslo.data.preprocess.inputs import Source
from gooseslo.errors import DataError

_BATCH_BYTES = 1 << 22
_COLUMNS_SHOWN = 8


def check_column(source: Source, text_key: str) -> None:
    """DataError if the files cannot be read, or hold no column of that name with texts, or no row."""
    num_rows = 0
    try:
        for path in source.parts:
            if source.format == "parquet":
                with parquet.ParquetFile(path) as file:
                    schema, num_rows = file.schema_arrow, num_rows + file.metadata.num_rows
            else:
                with pa.memory_map(str(path)) as file, ipc.open_stream(file) as reader:
                    schema, num_rows = reader.schema, num_rows + 1
            _check_type(source, schema, text_key)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(source, error) from error
    if num_rows == 0:
        raise DataError(f"input: {source.name}: it has no rows")


def column_batches(source: Source, text_key: str, *, skip_rows: int, batch_rows: int) -> Iterator[tuple[Any, float]]:
    """(values of some rows, the part of the source read by then) from row `skip_rows` on."""
    try:
        batches = _parquet_batches if source.format == "parquet" else _arrow_batches
        yield from batches(source, text_key, skip_rows, batch_rows)
    except pa.ArrowException as error:
        raise _unreadable(source, error) from error


def _parquet_batches(source: Source, key: str, skip_rows: int, batch_rows: int) -> Iterator[tuple[Any, float]]:
    with parquet.ParquetFile(source.path, pre_buffer=False) as file:
        total = max(1, file.metadata.num_rows)
        done, first_group = 0, 0
        while first_group < file.num_row_groups and done + file.metadata.row_group(first_group).num_rows <= skip_rows:
            done += file.metadata.row_group(first_group).num_rows
            first_group += 1
        groups = list(range(first_group, file.num_row_groups))
        rows = min([batch_rows, *(_rows_at_once(file.metadata.row_group(group), key) for group in groups)])
        for batch in file.iter_batches(rows, row_groups=groups, columns=[key], use_threads=False):
            skip = max(0, skip_rows - done)
            done += len(batch)
            if skip < len(batch):
                yield _column(batch.slice(skip), key).to_pylist(), done / total


def _rows_at_once(group: Any, key: str) -> int:
    """Rows of a Parquet row group whose texts are small enough to be in memory at once, by their mean."""
    columns = [group.column(number) for number in range(group.num_columns)]
    sizes = [c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] == key.split(".")[0]]
    return max(1, _BATCH_BYTES * group.num_rows // max(1, sum(sizes)))


def _arrow_batches(source: Source, key: str, skip_rows: int, batch_rows: int) -> Iterator[tuple[Any, float]]:
    done = 0
    for number, path in enumerate(source.parts):
        with pa.memory_map(str(path)) as file, ipc.open_stream(file) as reader:
            size = max(1, file.size())
            for whole in reader:
                rows = max(1, min(batch_rows, _BATCH_BYTES * len(whole) // max(1, whole.nbytes)))
                for begin in range(0, len(whole), rows):
                    batch = whole.slice(begin, rows)
                    skip = max(0, skip_rows - done)
                    done += len(batch)
                    if skip < len(batch):
                        part = (number + file.tell() / size) / len(source.parts)
                        yield _column(batch.slice(skip), key).to_pylist(), part


def _column(batch: pa.RecordBatch, key: str) -> pa.Array:
    if key in batch.schema.names:
        return batch.column(key)
    first, *rest = key.split(".")
    return pc.struct_field(batch.column(first), rest)


def _check_type(source: Source, schema: pa.Schema, key: str) -> None:
    fields = {field.name: field.type for field in schema}
    if key in fields:
        kind = fields[key]
    else:
        kind, place = pa.struct(list(schema)), ""
        for part in key.split("."):
            names = [field.name for field in kind] if pa.types.is_struct(kind) else []
            if part not in names:
                more = f" and {len(names) - _COLUMNS_SHOWN} more" if len(names) > _COLUMNS_SHOWN else ""
                where = f" of {place!r}" if place else ""
                columns = (", ".join(names[:_COLUMNS_SHOWN]) or "none") + more
                raise DataError(
                    f"input: {source.name}: no column {key!r}; columns{where}: {columns}\n  set text_key=COLUMN"
                )
            kind, place = kind.field(part).type, f"{place}.{part}".lstrip(".")
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(test(values) for test in tests):
        raise DataError(f"input: {source.name}: the column {key!r} is of type {kind}, not text\n  set text_key=COLUMN")


def _unreadable(source: Source, error: Exception) -> DataError:
    kind = "Parquet" if source.format == "parquet" else "Arrow"
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return DataError(f"input: {source.name}: not a whole {kind} file: {reason}")
