//! `Stamper` of messages, and columns that become documents.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::memchr;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyList};

use super::columns::check_depth;
use crate::rows::{self, Column};
use crate::stamp::{self, count_objects, may_hold_null};
use crate::uuid::Writer;

/// Returns the number of lines of objects with members; None if one is something else, or if
/// `null` is there without `nulls`.
#[pyfunction]
#[pyo3(name = "count_objects")]
pub fn count(lines: &[u8], nulls: bool) -> Option<usize> {
    if !nulls && may_hold_null(lines) {
        return None;
    }
    count_objects(lines)
}

/// Stamps messages with UUIDs of one producer.
#[pyclass(frozen, module = "gazette_aio.message.core")]
pub struct Stamper(stamp::Stamper);

#[pymethods]
impl Stamper {
    #[new]
    #[pyo3(signature = (head, after, producer, flags, *, text = true))]
    fn new(head: Vec<u8>, after: Vec<u8>, producer: [u8; 6], flags: u16, text: bool) -> Self {
        let writer = Writer::new(producer, flags);
        Stamper(stamp::Stamper {
            head,
            after,
            writer,
            is_text: text,
        })
    }

    /// Returns a UUID.
    fn uuid<'py>(&self, py: Python<'py>, clock: u64) -> Bound<'py, PyBytes> {
        self.0.with_uuid(clock, |uuid| PyBytes::new(py, uuid))
    }

    /// Returns a stamped line; None if the document isn't an object with members, on one line, or if
    /// `null` is there without `nulls`.
    fn line<'py>(
        &self,
        py: Python<'py>,
        document: Cow<'_, [u8]>,
        clock: u64,
        nulls: bool,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        if !document.starts_with(b"{\"")
            || memchr(b'\n', &document).is_some()
            || !nulls && may_hold_null(&document)
        {
            return Ok(None);
        }
        PyBytes::new_with(py, self.0.size(document.len(), 1) + 1, |place| {
            self.0.stamp(&document, clock, place)[0] = b'\n';
            Ok(())
        })
        .map(Some)
    }

    /// Returns stamped lines, each of which is an object with members.
    fn lines<'py>(
        &self,
        py: Python<'py>,
        lines: &[u8],
        first: u64,
        step: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let count = count_objects(lines)
            .ok_or_else(|| PyValueError::new_err("a line isn't an object with members"))?;
        PyBytes::new_with(py, self.0.size(lines.len(), count), |place| {
            self.0.stamp_lines(lines, first, step, place);
            Ok(())
        })
    }

    /// Returns stamped messages, of the bytes before their UUIDs, unless it's `head`, and after them.
    fn messages<'py>(
        &self,
        py: Python<'py>,
        heads: Option<Bound<'py, PyList>>,
        rests: Bound<'py, PyList>,
        first: u64,
        step: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        if heads.as_ref().is_some_and(|it| it.len() != rests.len()) {
            return Err(PyValueError::new_err("heads and rests aren't as many"));
        }
        let mut clock = first;
        let stamped = PyList::empty(py);
        let mut message = Vec::new();
        for (index, rest) in rests.iter().enumerate() {
            message.clear();
            match &heads {
                Some(heads) => {
                    message.extend_from_slice(&heads.get_item(index)?.extract::<Cow<'_, [u8]>>()?);
                }
                None => message.extend_from_slice(&self.0.head),
            }
            self.0
                .with_uuid(clock, |uuid| message.extend_from_slice(uuid));
            message.extend_from_slice(&self.0.after);
            message.extend_from_slice(&rest.extract::<Cow<'_, [u8]>>()?);
            stamped.append(PyBytes::new(py, &message))?;
            clock = clock.wrapping_add(step);
        }
        Ok(stamped)
    }
}

fn to_columns(columns: Vec<Bound<'_, PyAny>>, depth: usize) -> PyResult<Vec<Column>> {
    check_depth(depth)?;
    columns
        .into_iter()
        .map(|column| to_column(&column, depth))
        .collect()
}

fn to_column(column: &Bound<'_, PyAny>, depth: usize) -> PyResult<Column> {
    type Described<'py> = (
        PyBackedBytes,
        PyBackedStr,
        i32,
        usize,
        usize,
        Option<PyBackedBytes>,
        Vec<PyBackedBytes>,
        Vec<Bound<'py, PyAny>>,
    );
    let (key, kind, parameter, rows, shift, valid, buffers, children): Described<'_> =
        column.extract()?;
    let column = Column::new(
        Bytes::from_owner(key),
        &kind,
        parameter,
        rows,
        shift,
        valid.map(Bytes::from_owner),
        buffers.into_iter().map(Bytes::from_owner).collect(),
        to_columns(children, depth + 1)?,
    );
    column.ok_or_else(|| PyValueError::new_err("a column isn't as described"))
}

/// Returns the rows of columns as lines of JSON; None if JSON can't hold one of the values.
#[pyfunction]
pub fn table_lines<'py>(
    py: Python<'py>,
    columns: Vec<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let columns = to_columns(columns, 0)?;
    Ok(rows::lines(&columns).map(|lines| PyBytes::new(py, &lines)))
}
