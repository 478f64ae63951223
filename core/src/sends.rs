//! One call for a round of sends (`mailboat_wire::round`), with Python's queues as objects.

use std::iter::zip;
use std::sync::Arc;

use mailboat_wire::answer::{Answer, put_hex};
use mailboat_wire::checking::{self, Queue};
use mailboat_wire::grants::Grants;
use mailboat_wire::places;
use mailboat_wire::plan::{AnswerRow, Plan};
use mailboat_wire::record::{HOST_BYTES, HOST_V6_BYTES, PORT_BYTES, UNIT_BYTES};
use mailboat_wire::restored::Waited;
use mailboat_wire::round::{Place, QueueEnds, Read, Rounds, Settings};
use mailboat_wire::stored_record::StoredRecord;
use pyo3::exceptions::{PyAssertionError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

/// Takes rounds of sends to queues that it has learned; it keeps nothing of a round.
#[pyclass(module = "mailboat_core._native")]
pub struct SendRounds {
    rounds: Rounds,
    topics: Vec<Py<PyString>>,
    queues: Vec<Py<PyAny>>,
    store_host: Arc<[u8]>,
}

#[pymethods]
impl SendRounds {
    #[new]
    #[pyo3(signature = (*, store_host, broker_name, suffix, append_crc, with_keys, holds_answers, max_body_bytes, delays_ms, is_guarded))]
    #[allow(clippy::fn_params_excessive_bools, clippy::too_many_arguments)]
    fn new(
        store_host: Vec<u8>,
        broker_name: &str,
        suffix: Vec<u8>,
        append_crc: bool,
        with_keys: bool,
        holds_answers: bool,
        max_body_bytes: usize,
        delays_ms: Vec<i64>,
        is_guarded: bool,
    ) -> PyResult<Self> {
        if store_host.len() != HOST_BYTES && store_host.len() != HOST_V6_BYTES {
            let size = store_host.len();
            let text = format!("store_host has {size} bytes, not 8 or 20");
            return Err(PyValueError::new_err(text));
        }
        let mut digits = Vec::new();
        put_hex(&store_host, &mut digits);
        let mut rounds = Rounds::new(Settings {
            store_host,
            broker_name: broker_name.as_bytes().to_vec(),
            suffix,
            append_crc,
            with_keys,
            holds_answers,
            max_body_bytes,
            delays_ms,
        });
        rounds.grants = is_guarded.then(Grants::default);
        Ok(SendRounds {
            rounds,
            topics: Vec::new(),
            queues: Vec::new(),
            store_host: digits.into(),
        })
    }

    fn learn(
        &mut self,
        topic: &Bound<'_, PyString>,
        queue_id: i32,
        queue: Py<PyAny>,
    ) -> PyResult<()> {
        let name = topic.to_str()?.as_bytes();
        let Some(numbers) = self.rounds.topics.learn(name, queue_id) else {
            return Ok(());
        };
        if numbers.topic == self.topics.len() {
            self.topics.push(topic.clone().unbind());
        }
        match self.queues.get_mut(numbers.queue) {
            Some(known) => *known = queue,
            None => self.queues.push(queue),
        }
        Ok(())
    }

    /// Takes signed sends of a user to a topic; `peer_host` is the address and port of one.
    #[allow(clippy::needless_pass_by_value)]
    fn allow(
        &mut self,
        user: &[u8],
        secrets: Vec<Vec<u8>>,
        peer_host: &[u8],
        topic: &[u8],
    ) -> PyResult<()> {
        let address = address_of(peer_host)?;
        if let Some(grants) = &mut self.rounds.grants {
            grants.allow(user, &secrets, address, topic);
        }
        Ok(())
    }

    fn withdraw(&mut self, user: &[u8], peer_host: &[u8]) -> PyResult<()> {
        let address = address_of(peer_host)?;
        if let Some(grants) = &mut self.rounds.grants {
            grants.withdraw(user, address);
        }
        Ok(())
    }

    fn withdraw_all(&mut self) {
        if let Some(grants) = &mut self.rounds.grants {
            grants.clear();
        }
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
    ) -> PyResult<RoundAndRecords> {
        let reads: Vec<(Bound<'_, PyAny>, Bound<'_, PyBytes>)> = reads.extract()?;
        let mut hosts = Vec::with_capacity(reads.len());
        for (asker, _) in &reads {
            let host = asker.getattr(intern!(py, "peer_host"))?;
            hosts.push(host.cast_into::<PyBytes>()?);
        }
        let (askers, data): (Vec<_>, Vec<_>) = reads.into_iter().unzip();
        let reads: Vec<Read<'_>> = zip(&data, &hosts)
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
            queues: &self.queues,
            failure: None,
        };
        self.rounds.plan(&reads, place, &mut ends);
        if let Some(error) = ends.failure {
            return Err(error);
        }
        self.round(py, &reads, place, askers)
    }

    #[allow(clippy::too_many_arguments)]
    fn restore(
        &mut self,
        py: Python<'_>,
        records: &[u8],
        places: &[u8],
        are_halves: bool,
        queue_id: i32,
        physical_offset: i64,
        room_bytes: usize,
        store_timestamp_ms: i64,
    ) -> PyResult<RoundAndRecords> {
        let waited = if are_halves {
            Waited::Half
        } else {
            Waited::Delayed
        };
        let queue = Queue {
            topic: waited.topic(),
            queue_id,
        };
        let good = checking::first_bad(records, places::unpack(places), queue, true);
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
        let mut ends = Ends {
            py,
            queues: &self.queues,
            failure: None,
        };
        self.rounds.plan_restored(&reads, waited, place, &mut ends);
        if let Some(error) = ends.failure {
            return Err(error);
        }
        self.round(py, &reads, place, Vec::new())
    }
}

impl SendRounds {
    /// Fills and returns what was planned last; `askers` are those of the reads, where any wait.
    fn round(
        &self,
        py: Python<'_>,
        reads: &[Read<'_>],
        place: Place,
        askers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<RoundAndRecords> {
        let plan = self.rounds.last();
        let records = PyBytes::new_with(py, plan.size_bytes, |out| {
            self.rounds.fill(reads, place, out).ok_or_else(misfit)
        })?;
        let round = Round {
            size_bytes: plan.size_bytes,
            message_count: plan.message_count(),
            taken: PyList::new(py, &plan.taken)?.unbind(),
            waiting: plan.waiting,
            queues: self.touched_queues(py, plan)?.unbind(),
            topics: self.touched_topics(py, plan)?.unbind(),
            keys: PyBytes::new(py, &plan.keys).unbind(),
            askers: askers.into_iter().map(Bound::unbind).collect(),
            rows: plan.answers.as_slice().into(),
            physical_offsets: plan.physical_offsets.as_slice().into(),
            transaction_ids: plan.transaction_ids.as_slice().into(),
            store_host: Arc::clone(&self.store_host),
        };
        Ok((round, records.unbind()))
    }

    fn touched_queues<'py>(&self, py: Python<'py>, plan: &Plan) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for touched in &plan.queues {
            let queue = self.queues.get(touched.queue);
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
            let name = self.topics.get(touched.topic);
            list.append((name, touched.count, touched.size_bytes))?;
        }
        Ok(list)
    }
}

/// A round and its records, which are apart: a round waits as long as the disk hangs.
type RoundAndRecords = (Round, Py<PyBytes>);

/// What a round takes; nothing of it has happened yet.
#[pyclass(frozen, module = "mailboat_core._native")]
pub struct Round {
    #[pyo3(get)]
    size_bytes: usize,
    #[pyo3(get)]
    message_count: usize,
    #[pyo3(get)]
    taken: Py<PyList>,
    #[pyo3(get)]
    waiting: usize,
    #[pyo3(get)]
    queues: Py<PyList>,
    #[pyo3(get)]
    topics: Py<PyList>,
    #[pyo3(get)]
    keys: Py<PyBytes>,
    askers: Box<[Py<PyAny>]>,
    rows: Box<[AnswerRow]>,
    physical_offsets: Box<[i64]>,
    transaction_ids: Box<[u8]>,
    store_host: Arc<[u8]>,
}

#[pymethods]
impl Round {
    fn answers<'py>(
        &self,
        py: Python<'py>,
        code: i32,
        names_places: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let mut frames = Vec::new();
        for of_read in self.rows.chunk_by(|one, next| one.read == next.read) {
            frames.clear();
            for row in of_read {
                let range = row.first..row.first + if names_places { row.count } else { 0 };
                let (id_at, id_end) = if names_places {
                    row.transaction_id
                } else {
                    (0, 0)
                };
                Answer {
                    code,
                    opaque: row.opaque,
                    is_binary: row.is_binary,
                    queue_id: row.queue_id,
                    queue_offset: if names_places { row.queue_offset } else { 0 },
                    store_host: &self.store_host,
                    physical_offsets: self.physical_offsets.get(range).ok_or_else(misfit)?,
                    transaction_id: self.transaction_ids.get(id_at..id_end).ok_or_else(misfit)?,
                }
                .write(&mut frames);
            }
            if let Some(row) = of_read.first() {
                let asker = self.askers.get(row.read).ok_or_else(misfit)?;
                list.append((asker, PyBytes::new(py, &frames)))?;
            }
        }
        Ok(list)
    }
}

/// Asks the objects of queues where they end.
struct Ends<'a, 'py> {
    py: Python<'py>,
    queues: &'a [Py<PyAny>],
    failure: Option<PyErr>,
}

impl QueueEnds for Ends<'_, '_> {
    fn next_offset(&mut self, queue: usize) -> Option<i64> {
        let queue = self.queues.get(queue)?.bind(self.py);
        let ask = || {
            // What is there now under its name is another one.
            if queue.getattr(intern!(self.py, "is_removed"))?.is_truthy()? {
                return Ok(None);
            }
            let offset = queue.getattr(intern!(self.py, "next_offset"))?;
            offset.extract().map(Some)
        };
        ask().unwrap_or_else(|error: PyErr| {
            self.failure = Some(error);
            None
        })
    }
}

/// Returns the address of a host as records hold it, without its port.
fn address_of(host: &[u8]) -> PyResult<&[u8]> {
    match host.len() {
        HOST_BYTES | HOST_V6_BYTES => Ok(&host[..host.len() - PORT_BYTES]),
        size => {
            let text = format!("a host has {size} bytes, not 8 or 20");
            Err(PyValueError::new_err(text))
        }
    }
}

fn misfit() -> PyErr {
    PyAssertionError::new_err("the core planned another size than it filled")
}
