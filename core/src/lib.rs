//! Python's door to `mailboat-wire`: converts arguments and results, decides nothing.

mod reads;
mod sends;

use mailboat_wire::checksum;
use pyo3::prelude::*;

/// Returns the 31 bits of CRC-32 that records hold of a body.
#[pyfunction]
fn body_crc(body: &[u8]) -> u32 {
    checksum::body_crc(body)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(body_crc, module)?)?;
    module.add_function(wrap_pyfunction!(reads::choose_places, module)?)?;
    module.add_function(wrap_pyfunction!(reads::check_records, module)?)?;
    module.add_function(wrap_pyfunction!(reads::decode_records, module)?)?;
    module.add_function(wrap_pyfunction!(reads::decode_rows, module)?)?;
    module.add_function(wrap_pyfunction!(reads::property_values, module)?)?;
    module.add_class::<sends::SendRounds>()?;
    module.add_class::<sends::Round>()
}
