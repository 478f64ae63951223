//! What a start asks for that reads the log again: records as what is derived from them.

use mailboat_wire::scan::{Options, Scan};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

/// What `scan_records` returns: bytes and records taken; the last and the newest store time; topic,
/// queue id, first queue offset, first physical offset, units and physical end of each queue; rows,
/// first physical offset and store time of all keys of a millisecond.
type Scanned<'py> = (
    usize,
    usize,
    i64,
    i64,
    Bound<'py, PyList>,
    Bound<'py, PyList>,
);

/// Returns what is derived from the plain records from a position on, which lies at a physical
/// offset: checked with `check_crc`, and with at most so many rows of keys, none where that is 0.
#[pyfunction]
pub fn scan_records<'py>(
    py: Python<'py>,
    data: &[u8],
    at: usize,
    physical_offset: i64,
    check_crc: bool,
    most_rows: usize,
) -> PyResult<Scanned<'py>> {
    let options = Options {
        sums: check_crc,
        with_keys: most_rows > 0,
        most_rows,
    };
    let scan = Scan::of(data.get(at..).unwrap_or_default(), physical_offset, options);
    let queues = PyList::empty(py);
    for queue in &scan.queues {
        queues.append((
            PyString::new(py, queue.topic),
            queue.queue_id,
            queue.queue_offset,
            queue.physical_offset,
            PyBytes::new(py, &queue.units),
            queue.end,
        ))?;
    }
    let keys = PyList::empty(py);
    for of_one in &scan.keys {
        let rows = scan.rows.get(of_one.rows.clone()).unwrap_or_default();
        keys.append((
            PyBytes::new(py, rows),
            of_one.physical_offset,
            of_one.store_timestamp_ms,
        ))?;
    }
    let times = (scan.last_store_timestamp_ms, scan.newest_store_timestamp_ms);
    Ok((scan.size, scan.count, times.0, times.1, queues, keys))
}
