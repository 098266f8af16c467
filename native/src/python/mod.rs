//! All that knows of Python.

mod batch;
mod columns;
mod journal;
mod rows;

use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub fn words<const N: usize>(
    py: Python<'_>,
    items: impl ExactSizeIterator<Item = [u8; N]>,
) -> PyResult<Bound<'_, PyBytes>> {
    PyBytes::new_with(py, items.len() * N, |place| {
        for (place, item) in place.chunks_exact_mut(N).zip(items) {
            place.copy_from_slice(&item);
        }
        Ok(())
    })
}

/// Returns the bytes of a producer's ID.
pub fn identity(number: u64) -> [u8; 6] {
    let [_, _, id @ ..] = number.to_be_bytes();
    id
}

/// Calls a function whose panic is an error.
pub fn caught<T>(call: impl FnOnce() -> T) -> PyResult<T> {
    // What the function leaves behind isn't used after a panic.
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| PyRuntimeError::new_err("the core failed"))
}

#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::columns::Schema;
    #[pymodule_export]
    use super::journal::Journal;
    #[pymodule_export]
    use super::rows::{count, table_lines, Stamper};
}
