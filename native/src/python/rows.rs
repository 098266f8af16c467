//! `Stamper` of documents, and `Table` of columns that become documents.

use memchr::memchr;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::rows;
use crate::stamp::{self, count_objects};
use crate::uuid::Writer;

/// Returns the number of lines of objects with members; None if one is something else.
#[pyfunction]
#[pyo3(name = "count_objects")]
pub fn count(lines: &[u8]) -> Option<usize> {
    count_objects(lines)
}

/// Stamps documents with UUIDs of one producer.
#[pyclass(frozen, module = "gazette_aio.message.core")]
pub struct Stamper(stamp::Stamper);

#[pymethods]
impl Stamper {
    #[new]
    fn new(head: Vec<u8>, after: Vec<u8>, producer: [u8; 6], flags: u16) -> Self {
        Stamper(stamp::Stamper {
            head,
            after,
            writer: Writer::new(producer, flags),
        })
    }

    /// Returns a stamped line; None if the document isn't an object with members, on one line.
    fn line<'py>(
        &self,
        py: Python<'py>,
        document: &[u8],
        clock: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        if !document.starts_with(b"{\"") || memchr(b'\n', document).is_some() {
            return Ok(None);
        }
        let stamped = PyBytes::new_with(py, self.0.size(document.len(), 1) + 1, |place| {
            self.0.stamp(document, clock, place)[0] = b'\n';
            Ok(())
        });
        stamped.map(Some)
    }

    /// Returns `count` stamped lines, of lines that `count_objects()` has counted.
    fn lines<'py>(
        &self,
        py: Python<'py>,
        lines: &[u8],
        count: usize,
        first: u64,
        step: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.0.size(lines.len(), count), |place| {
            self.0.stamp_lines(lines, first, step, place);
            Ok(())
        })
    }
}

/// A column of a table: name with colon, kind, width, first, validity, buffers and children.
#[derive(FromPyObject)]
struct TableColumn<'py>(
    Vec<u8>,
    String,
    usize,
    usize,
    Option<Bound<'py, PyAny>>,
    Vec<Bound<'py, PyAny>>,
    Vec<TableColumn<'py>>,
);

fn content(py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    PyBuffer::<u8>::get(buffer)?.to_vec(py)
}

fn bounds(bytes: &[u8], width: usize) -> Vec<i64> {
    let narrow =
        |word: &[u8]| i64::from(i32::from_le_bytes(word.try_into().expect("it's of four")));
    let wide = |word: &[u8]| i64::from_le_bytes(word.try_into().expect("it's of eight"));
    if width == 4 {
        bytes.chunks_exact(4).map(narrow).collect()
    } else {
        bytes.chunks_exact(8).map(wide).collect()
    }
}

fn to_cells(py: Python<'_>, column: TableColumn<'_>) -> PyResult<(Vec<u8>, rows::Column)> {
    let TableColumn(name, kind, width, first, valid, buffers, children) = column;
    let get = |at: usize| {
        content(
            py,
            buffers
                .get(at)
                .ok_or_else(|| PyValueError::new_err("a buffer is missing"))?,
        )
    };
    let mut children = children
        .into_iter()
        .map(|child| to_cells(py, child))
        .collect::<PyResult<Vec<_>>>()?;
    let values = match kind.as_str() {
        "bool" => rows::Values::Bool(get(0)?),
        "int" => rows::Values::Int(get(0)?, width, true),
        "uint" => rows::Values::Int(get(0)?, width, false),
        "float" => rows::Values::Float(get(0)?, width),
        "text" => rows::Values::Text(bounds(&get(0)?, width), get(1)?),
        "time" => rows::Values::Time(get(0)?, width as u32, false),
        "utc" => rows::Values::Time(get(0)?, width as u32, true),
        "struct" => rows::Values::Struct(children),
        "list" if children.len() == 1 => {
            rows::Values::List(bounds(&get(0)?, width), Box::new(children.remove(0).1))
        }
        _ => return Err(PyValueError::new_err(format!("kind {kind} isn't known"))),
    };
    let valid = valid.map(|valid| content(py, &valid)).transpose()?;
    Ok((
        name,
        rows::Column {
            valid,
            first,
            values,
        },
    ))
}

/// Columns of a table that are written as lines.
#[pyclass(frozen, module = "gazette_aio.message.core")]
pub struct Table(Vec<(Vec<u8>, rows::Column)>);

#[pymethods]
impl Table {
    #[new]
    fn new(py: Python<'_>, columns: Vec<TableColumn<'_>>) -> PyResult<Self> {
        Ok(Table(
            columns
                .into_iter()
                .map(|column| to_cells(py, column))
                .collect::<PyResult<_>>()?,
        ))
    }

    /// Returns rows as lines, made without the interpreter's lock.
    fn lines<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let lines = py.detach(|| rows::write_lines(&self.0, start..stop));
        let lines = lines.map_err(|(row, text)| PyValueError::new_err((row, text)))?;
        Ok(PyBytes::new(py, &lines))
    }
}

