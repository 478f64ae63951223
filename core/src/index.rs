//! The slots of an IndexFile (`mailboat_wire::index`), kept for as long as it is written.

use mailboat_wire::index;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// All slots of a file, as they are on the disk.
#[pyclass(module = "mailboat_core._native")]
pub struct IndexSlots {
    bytes: Vec<u8>,
}

#[pymethods]
impl IndexSlots {
    /// Begins with empty slots; only the pages that slots fall into will cost memory.
    #[new]
    fn new(slot_count: u32) -> PyResult<Self> {
        match usize::try_from(slot_count).ok().and_then(index::size_of) {
            Some(size_bytes) => Ok(IndexSlots {
                bytes: vec![0; size_bytes],
            }),
            None => Err(misfit()),
        }
    }

    fn load(&mut self, data: &[u8]) -> PyResult<()> {
        if data.len() != self.bytes.len() {
            return Err(misfit());
        }
        self.bytes.copy_from_slice(data);
        Ok(())
    }

    fn copy<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.bytes)
    }

    fn newest(&self, key_hash: u32) -> PyResult<i32> {
        index::newest(&self.bytes, key_hash).ok_or_else(misfit)
    }

    fn put<'py>(
        &mut self,
        py: Python<'py>,
        rows: &[u8],
        entry_count: u32,
        seconds: i32,
    ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        let put = index::put(&mut self.bytes, rows, entry_count, seconds);
        let (entries, new_slots) = put.ok_or_else(misfit)?;
        Ok((PyBytes::new(py, &entries), new_slots))
    }
}

fn misfit() -> PyErr {
    PyValueError::new_err("no slots, not all of them, or more entries than a file can count")
}
