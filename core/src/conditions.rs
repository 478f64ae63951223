//! SQL92 conditions: read once, asked for many records.

use mailboat_wire::sql_program::Program;
use pyo3::prelude::*;

/// A condition that the core can judge.
#[pyclass(frozen, module = "mailboat_core._native")]
pub struct Condition(Program);

/// Returns a packed condition, None where it is none.
#[pyfunction]
pub fn read_condition(packed: &[u8]) -> Option<Condition> {
    Program::read(packed).map(Condition)
}

#[pymethods]
impl Condition {
    /// Returns where the records lie that are taken, how many they are, and the position of the
    /// first record that was not judged.
    fn judge(
        &self,
        records: &[u8],
        at: usize,
        max_messages: usize,
        max_bytes: i64,
    ) -> (Vec<(usize, usize)>, usize, usize) {
        let judged = self.0.judge(records, at, max_messages, max_bytes);
        let runs = judged.runs.iter().map(|run| (run.start, run.end));
        (runs.collect(), judged.count, judged.at)
    }
}
