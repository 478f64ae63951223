//! What readers of records ask for: the check of a pull's records, and records as messages.

use std::borrow::Cow;

use mailboat_wire::checking::{self, Queue};
use mailboat_wire::places::{self, Limits};
use mailboat_wire::property_text;
use mailboat_wire::stored_record::StoredRecord;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyList, PyString, PyTuple};

/// What `choose_places` returns: packed places, where to go on, and the runs of these places.
type Chosen<'py> = (Bound<'py, PyBytes>, i64, Vec<(i64, i64)>);

/// Returns which records a read takes, None where their places are not in order.
#[pyfunction]
pub fn choose_places<'py>(
    py: Python<'py>,
    units: &[u8],
    queue_offset: i64,
    max_messages: i64,
    max_bytes: i64,
    tags_codes: Option<&Bound<'py, PyFrozenSet>>,
) -> PyResult<Option<Chosen<'py>>> {
    let mut codes = Vec::new();
    if let Some(tags_codes) = tags_codes {
        for code in tags_codes {
            codes.push(code.extract::<i64>()?);
        }
        codes.sort_unstable();
    }
    let limits = Limits {
        max_messages,
        max_bytes,
        tags_codes: tags_codes.map(|_| &codes[..]),
    };
    let chosen = places::choose(units, queue_offset, &limits);
    Ok(chosen.map(|chosen| (PyBytes::new(py, &chosen.places), chosen.after, chosen.runs)))
}

/// Returns the number of the first bad record of a queue, -1 when all are good.
#[pyfunction]
pub fn check_records(
    records: &[u8],
    places: &[u8],
    topic: &[u8],
    queue_id: i32,
    check_crc: bool,
) -> isize {
    let queue = Queue { topic, queue_id };
    match checking::first_bad(records, places::unpack(places), queue, check_crc) {
        None => -1,
        Some(index) => isize::try_from(index).unwrap_or(isize::MAX),
    }
}

/// Returns the fields of records that lie back to back, a tuple for each in the order of
/// `mailboat.model.message.MessageExt`, and where it stopped: at the end or at a bad record.
#[pyfunction]
pub fn decode_records<'py>(py: Python<'py>, body: &[u8]) -> PyResult<(Bound<'py, PyList>, usize)> {
    let rows = PyList::empty(py);
    let mut texts = Texts::new(py);
    let mut at = 0;
    while let Some(record) = body.get(at..).and_then(StoredRecord::read) {
        if !record.checksum_holds() {
            break;
        }
        rows.append(texts.row(&record)?)?;
        at += record.bytes.len();
    }
    Ok((rows, at))
}

/// What `decode_rows` returns: payloads, stored properties and heads of the rows; the first and last
/// queue offset seen and how many; where it stopped.
type Rows<'py> = (
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    (i64, i64, usize),
    usize,
);

/// Returns columns of the records from a position on, as `mailboat_spark.records` keeps them.
///
/// Records at the queue offset `end` and after it are left out, and with `tags` those of other
/// tags. It stops at the end, at a bad record, and at one with a compressed body.
#[pyfunction]
pub fn decode_rows<'py>(
    py: Python<'py>,
    body: &[u8],
    at: usize,
    end: i64,
    tags: &Bound<'py, PyFrozenSet>,
) -> PyResult<Rows<'py>> {
    let (payloads, properties, heads) = (PyList::empty(py), PyList::empty(py), PyList::empty(py));
    let (mut at, mut seen) = (at, (0, -1, 0));
    while let Some(record) = body.get(at..).and_then(StoredRecord::read) {
        if record.is_compressed() || !record.checksum_holds() {
            break;
        }
        at += record.bytes.len();
        if record.queue_offset >= end {
            continue;
        }
        let first = if seen.2 == 0 {
            record.queue_offset
        } else {
            seen.0
        };
        seen = (first, record.queue_offset, seen.2 + 1);
        if !tags.is_empty() {
            let tag = property_text::value_of(record.properties, b"TAGS");
            let is_wanted = match tag {
                Some(tag) => tags.contains(PyBytes::new(py, tag))?,
                None => false,
            };
            if !is_wanted {
                continue;
            }
        }
        payloads.append(PyBytes::new(py, record.body))?;
        properties.append(PyBytes::new(py, record.properties))?;
        heads.append(row_head(py, &record)?)?;
    }
    Ok((payloads, properties, heads, seen, at))
}

/// Returns one property's value for each of some stored texts, None where it has none.
#[pyfunction]
pub fn property_values<'py>(
    py: Python<'py>,
    texts: &Bound<'py, PyList>,
    name: &[u8],
) -> PyResult<Bound<'py, PyList>> {
    let values = PyList::empty(py);
    for text in texts {
        let text = text.cast::<PyBytes>()?;
        let value = property_text::value_of(text.as_bytes(), name);
        values.append(value.map(|value| PyBytes::new(py, value)))?;
    }
    Ok(values)
}

fn row_head<'py>(py: Python<'py>, record: &StoredRecord<'_>) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(
        py,
        [
            number(py, i64::try_from(record.bytes.len()).unwrap_or(i64::MAX)),
            number(py, record.magic),
            number(py, signed(record.body_crc)),
            number(py, record.flag),
            number(py, record.queue_offset),
            number(py, record.sys_flag),
            number(py, record.born_timestamp_ms),
            number(py, record.store_timestamp_ms),
            number(py, record.reconsume_times),
            number(py, i64::try_from(record.body.len()).unwrap_or(i64::MAX)),
        ],
    )
}

/// Makes rows, and Python objects only once of what is the same in many records.
struct Texts<'py, 'a> {
    py: Python<'py>,
    names: Vec<(&'a [u8], Bound<'py, PyString>)>,
    topic: (&'a [u8], Bound<'py, PyString>),
    born_host: (&'a [u8], Bound<'py, PyBytes>),
    store_host: (&'a [u8], Bound<'py, PyBytes>),
}

impl<'py, 'a> Texts<'py, 'a> {
    fn new(py: Python<'py>) -> Self {
        Self {
            py,
            names: Vec::new(),
            topic: (&[], PyString::new(py, "")),
            born_host: (&[], PyBytes::new(py, &[])),
            store_host: (&[], PyBytes::new(py, &[])),
        }
    }

    fn row(&mut self, record: &StoredRecord<'a>) -> PyResult<Bound<'py, PyTuple>> {
        let py = self.py;
        if record.topic != self.topic.0 {
            self.topic = (record.topic, text(py, record.topic));
        }
        if record.born_host != self.born_host.0 {
            self.born_host = (record.born_host, PyBytes::new(py, record.born_host));
        }
        if record.store_host != self.store_host.0 {
            self.store_host = (record.store_host, PyBytes::new(py, record.store_host));
        }
        let properties = self.properties(record.properties)?;
        let fields: [Bound<'py, PyAny>; 16] = [
            self.topic.1.clone().into_any(),
            PyBytes::new(py, record.body).into_any(),
            number(py, record.queue_id),
            number(py, record.queue_offset),
            number(py, record.physical_offset),
            number(py, i64::try_from(record.bytes.len()).unwrap_or(i64::MAX)),
            number(py, record.flag),
            number(py, record.sys_flag),
            number(py, signed(record.body_crc)),
            number(py, record.born_timestamp_ms),
            self.born_host.1.clone().into_any(),
            number(py, record.store_timestamp_ms),
            self.store_host.1.clone().into_any(),
            number(py, record.reconsume_times),
            number(py, record.prepared_transaction_offset),
            properties.into_any(),
        ];
        PyTuple::new(py, fields)
    }

    fn properties(&mut self, stored: &'a [u8]) -> PyResult<Bound<'py, PyDict>> {
        let properties = PyDict::new(self.py);
        for (place, (name, value)) in property_text::entries(stored).enumerate() {
            properties.set_item(self.name(place, name), text(self.py, value))?;
        }
        Ok(properties)
    }

    /// Returns the name of an entry, which mostly is that of the record before at the same place.
    fn name(&mut self, place: usize, name: &'a [u8]) -> Bound<'py, PyString> {
        match self.names.get(place) {
            Some((stored, known)) if *stored == name => known.clone(),
            _ => {
                let made = text(self.py, name);
                self.names.truncate(place);
                self.names.push((name, made.clone()));
                made
            }
        }
    }
}

/// Returns stored text; what is no UTF-8 is replaced, as Python's `errors="replace"` does.
fn text<'py>(py: Python<'py>, stored: &[u8]) -> Bound<'py, PyString> {
    let known: Cow<'_, str> = String::from_utf8_lossy(stored);
    PyString::new(py, &known)
}

fn signed(crc: u32) -> i32 {
    i32::from_be_bytes(crc.to_be_bytes())
}

fn number(py: Python<'_>, value: impl Into<i64>) -> Bound<'_, PyAny> {
    match value.into().into_pyobject(py) {
        Ok(made) => made.into_any(),
        Err(never) => match never {},
    }
}
