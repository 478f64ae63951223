//! Python's door to `mailboat-wire`: converts arguments and results, decides nothing.

mod conditions;
mod index;
mod reads;
mod scans;
mod sends;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(reads::choose_places, module)?)?;
    module.add_function(wrap_pyfunction!(reads::check_records, module)?)?;
    module.add_function(wrap_pyfunction!(reads::decode_records, module)?)?;
    module.add_function(wrap_pyfunction!(reads::decode_rows, module)?)?;
    module.add_function(wrap_pyfunction!(reads::property_values, module)?)?;
    module.add_function(wrap_pyfunction!(scans::scan_records, module)?)?;
    module.add_class::<index::IndexSlots>()?;
    module.add_function(wrap_pyfunction!(conditions::read_condition, module)?)?;
    module.add_class::<conditions::Condition>()?;
    module.add_class::<sends::SendRounds>()?;
    module.add_class::<sends::Round>()
}
