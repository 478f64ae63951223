//! One call for a round of sends (`mailboat_wire::round`), with Python's queues as objects.

use std::sync::Arc;

use mailboat_wire::answer::{Answer, put_hex};
use mailboat_wire::checking;
use mailboat_wire::places;
use mailboat_wire::plan::{AnswerRow, Plan};
use mailboat_wire::record::{HOST_BYTES, HOST_V6_BYTES, UNIT_BYTES};
use mailboat_wire::restored::Waited;
use mailboat_wire::round::{Place, QueueEnds, Read, Rounds, Settings};
use mailboat_wire::stored_record::StoredRecord;
use pyo3::exceptions::{PyAssertionError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

/// A topic as Python knows it.
struct Learned {
    name: Py<PyString>,
    queues: Vec<Option<Py<PyAny>>>,
}

/// Takes rounds of sends to topics that it has learned; it keeps nothing of a round.
#[pyclass(module = "mailboat_core._native")]
pub struct SendRounds {
    rounds: Rounds,
    learned: Vec<Learned>,
    store_host: Arc<[u8]>,
}

#[pymethods]
impl SendRounds {
    #[new]
    #[pyo3(signature = (*, store_host, broker_name, suffix, append_crc, with_keys, holds_answers, delays_ms))]
    #[allow(clippy::fn_params_excessive_bools)]
    fn new(
        store_host: Vec<u8>,
        broker_name: &str,
        suffix: Vec<u8>,
        append_crc: bool,
        with_keys: bool,
        holds_answers: bool,
        delays_ms: Vec<i64>,
    ) -> PyResult<Self> {
        if store_host.len() != HOST_BYTES && store_host.len() != HOST_V6_BYTES {
            let size = store_host.len();
            let text = format!("store_host has {size} bytes, not 8 or 20");
            return Err(PyValueError::new_err(text));
        }
        let mut digits = Vec::new();
        put_hex(&store_host, &mut digits);
        Ok(SendRounds {
            rounds: Rounds::new(Settings {
                store_host,
                broker_name: broker_name.as_bytes().to_vec(),
                suffix,
                append_crc,
                with_keys,
                holds_answers,
                max_body_bytes: 0,
                delays_ms,
            }),
            learned: Vec::new(),
            store_host: digits.into(),
        })
    }

    #[pyo3(signature = (*, max_body_bytes))]
    fn configure(&mut self, max_body_bytes: usize) {
        self.rounds.settings.max_body_bytes = max_body_bytes;
    }

    fn learn(
        &mut self,
        topic: &Bound<'_, PyString>,
        write_queue_nums: usize,
        mut queues: Vec<Option<Py<PyAny>>>,
    ) -> PyResult<()> {
        queues.truncate(write_queue_nums);
        let are_there = queues.iter().map(Option::is_some);
        let Some(number) = self
            .rounds
            .topics
            .learn(topic.to_str()?.as_bytes(), are_there)
        else {
            return Ok(());
        };
        let name = topic.clone().unbind();
        let topic = Learned { name, queues };
        match self.learned.get_mut(number) {
            Some(known) => *known = topic,
            None => self.learned.push(topic),
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.rounds.topics.forget();
        self.learned.clear();
    }

    #[allow(clippy::too_many_arguments)]
    fn take(
        &mut self,
        py: Python<'_>,
        reads: &Bound<'_, PyList>,
        physical_offset: i64,
        room_bytes: usize,
        store_timestamp_ms: i64,
        delay_from_ms: i64,
        takes_halves: bool,
        message_limit: usize,
    ) -> PyResult<Round> {
        let reads: Vec<(Bound<'_, PyBytes>, Bound<'_, PyBytes>)> = reads.extract()?;
        let reads: Vec<Read<'_>> = reads
            .iter()
            .map(|(bytes, peer_host)| Read {
                bytes: bytes.as_bytes(),
                peer_host: peer_host.as_bytes(),
            })
            .collect();
        let place = Place {
            physical_offset,
            room_bytes,
            store_timestamp_ms,
            delay_from_ms,
            takes_halves,
            message_limit,
        };
        let mut ends = Ends {
            py,
            learned: &self.learned,
            failure: None,
        };
        self.rounds.plan(&reads, place, &mut ends);
        if let Some(error) = ends.failure {
            return Err(error);
        }
        self.round(py, &reads, place)
    }

    #[allow(clippy::too_many_arguments)]
    fn restore(
        &mut self,
        py: Python<'_>,
        records: &[u8],
        places: &[u8],
        are_halves: bool,
        physical_offset: i64,
        room_bytes: usize,
        store_timestamp_ms: i64,
    ) -> PyResult<Round> {
        let good = checking::first_bad(records, places::unpack(places), true);
        let mut reads = Vec::new();
        let mut rest = records;
        while reads.len() < good.unwrap_or(usize::MAX)
            && let Some(record) = StoredRecord::read(rest)
        {
            rest = rest.get(record.bytes.len()..).unwrap_or_default();
            reads.push(Read {
                bytes: record.bytes,
                peer_host: record.born_host,
            });
        }
        let place = Place {
            physical_offset,
            room_bytes,
            store_timestamp_ms,
            delay_from_ms: 0,
            takes_halves: false,
            message_limit: 0,
        };
        let waited = if are_halves {
            Waited::Half
        } else {
            Waited::Delayed
        };
        let mut ends = Ends {
            py,
            learned: &self.learned,
            failure: None,
        };
        self.rounds.plan_restored(&reads, waited, place, &mut ends);
        if let Some(error) = ends.failure {
            return Err(error);
        }
        self.round(py, &reads, place)
    }
}

impl SendRounds {
    /// Fills and returns what was planned last.
    fn round(&self, py: Python<'_>, reads: &[Read<'_>], place: Place) -> PyResult<Round> {
        let plan = self.rounds.last();
        let records = PyBytes::new_with(py, plan.size_bytes, |out| {
            self.rounds.fill(reads, place, out).ok_or_else(misfit)
        })?;
        Ok(Round {
            records: records.unbind(),
            message_count: plan.message_count(),
            taken: PyList::new(py, &plan.taken)?.unbind(),
            is_full: plan.is_full,
            queues: self.touched_queues(py, plan)?.unbind(),
            topics: self.touched_topics(py, plan)?.unbind(),
            keys: PyBytes::new(py, &plan.keys).unbind(),
            rows: plan.answers.as_slice().into(),
            physical_offsets: plan.physical_offsets.as_slice().into(),
            transaction_ids: plan.transaction_ids.as_slice().into(),
            store_host: Arc::clone(&self.store_host),
        })
    }

    fn touched_queues<'py>(&self, py: Python<'py>, plan: &Plan) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for touched in &plan.queues {
            let topic = self.learned.get(touched.topic);
            let queue = topic.and_then(|topic| topic.queues.get(touched.queue)?.as_ref());
            let units = PyBytes::new_with(py, touched.count * UNIT_BYTES, |out| {
                plan.fill_units(touched, out).ok_or_else(misfit)
            })?;
            list.append((queue, touched.count, units, touched.end))?;
        }
        Ok(list)
    }

    fn touched_topics<'py>(&self, py: Python<'py>, plan: &Plan) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for touched in &plan.topics {
            let name = self.learned.get(touched.topic).map(|topic| &topic.name);
            list.append((name, touched.count, touched.size_bytes))?;
        }
        Ok(list)
    }
}

/// What a round takes; nothing of it has happened yet.
#[pyclass(frozen, module = "mailboat_core._native")]
pub struct Round {
    #[pyo3(get)]
    records: Py<PyBytes>,
    #[pyo3(get)]
    message_count: usize,
    #[pyo3(get)]
    taken: Py<PyList>,
    #[pyo3(get)]
    is_full: bool,
    #[pyo3(get)]
    queues: Py<PyList>,
    #[pyo3(get)]
    topics: Py<PyList>,
    #[pyo3(get)]
    keys: Py<PyBytes>,
    rows: Box<[AnswerRow]>,
    physical_offsets: Box<[i64]>,
    transaction_ids: Box<[u8]>,
    store_host: Arc<[u8]>,
}

#[pymethods]
impl Round {
    fn answers<'py>(&self, py: Python<'py>, code: i32) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let mut frames = Vec::new();
        for of_read in self.rows.chunk_by(|one, next| one.read == next.read) {
            frames.clear();
            for row in of_read {
                let range = row.first..row.first + row.count;
                let (id_at, id_end) = row.transaction_id;
                Answer {
                    code,
                    opaque: row.opaque,
                    queue_id: row.queue_id,
                    queue_offset: row.queue_offset,
                    store_host: &self.store_host,
                    physical_offsets: self.physical_offsets.get(range).ok_or_else(misfit)?,
                    transaction_id: self.transaction_ids.get(id_at..id_end).ok_or_else(misfit)?,
                }
                .write(&mut frames);
            }
            if let Some(row) = of_read.first() {
                list.append((row.read, PyBytes::new(py, &frames)))?;
            }
        }
        Ok(list)
    }
}

/// Asks the objects of queues where they end.
struct Ends<'a, 'py> {
    py: Python<'py>,
    learned: &'a [Learned],
    failure: Option<PyErr>,
}

impl QueueEnds for Ends<'_, '_> {
    fn next_offset(&mut self, topic: usize, queue: usize) -> Option<i64> {
        let queue = self.learned.get(topic)?.queues.get(queue)?.as_ref()?;
        let offset = queue
            .bind(self.py)
            .getattr(intern!(self.py, "next_offset"))
            .and_then(|offset| offset.extract());
        offset.map_err(|error| self.failure = Some(error)).ok()
    }
}

fn misfit() -> PyErr {
    PyAssertionError::new_err("the core planned another size than it filled")
}
