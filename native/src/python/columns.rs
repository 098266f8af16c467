//! `Schema` of typed columns, and the columns of documents.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::{caught, words};
use crate::columns::{self, Bits, Column, Members, Number, Texts, Values};

const DEEPEST: usize = 64;

/// Columns of documents.
#[pyclass(frozen, module = "gazette_aio.message.core")]
pub struct Schema(Members);

#[pymethods]
impl Schema {
    #[new]
    fn new(py: Python<'_>, fields: Vec<Py<PyAny>>) -> PyResult<Self> {
        Ok(Schema(to_members(py, fields, 0)?))
    }

    /// Parses an array of documents, as `Batch.documents()` does.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offsets: PyBuffer<i32>,
        data: PyBuffer<u8>,
        threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let (offsets, data) = (offsets.to_vec(py)?, data.to_vec(py)?);
        let document = |pair: &[i32]| {
            let bounds = usize::try_from(pair[0]).ok()?..usize::try_from(pair[1]).ok()?;
            data.get(bounds)
        };
        let documents: Option<Vec<&[u8]>> = offsets.windows(2).map(document).collect();
        let documents =
            documents.ok_or_else(|| PyValueError::new_err("offsets aren't those of the data"))?;
        self.parts(py, &documents, threads)
    }
}

impl Schema {
    /// Parses documents without the interpreter's lock. Returns parts: numbers of rows, columns, and
    /// indices of documents that aren't among the rows.
    pub fn parts<'py>(
        &self,
        py: Python<'py>,
        documents: &[&[u8]],
        threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        // Offsets have 32 bits. No column has more bytes or elements than its documents.
        let size: usize = documents.iter().map(|document| document.len()).sum();
        if size > i32::MAX as usize {
            let text = format!("{size} bytes of messages are too many for one array");
            return Err(PyOverflowError::new_err(text));
        }
        let parts = py.detach(|| caught(|| columns::read(&self.0, documents, threads)))?;
        let part = |part: columns::Part| {
            let columns = part.members.columns.iter().map(|column| array(py, column));
            let columns = columns.collect::<PyResult<Vec<_>>>()?;
            Ok((part.rows, columns, part.refused))
        };
        let parts = parts.into_iter().map(part);
        PyList::new(py, parts.collect::<PyResult<Vec<_>>>()?)
    }
}

/// Name and kind of a column, numbers of the kind, and children.
type Field = (String, String, Vec<usize>, Vec<Py<PyAny>>);

fn to_members(py: Python<'_>, fields: Vec<Py<PyAny>>, depth: usize) -> PyResult<Members> {
    check_depth(depth)?;
    let to_named = |field: Py<PyAny>| {
        let (name, kind, numbers, children): Field = field.extract(py)?;
        let children = to_members(py, children, depth + 1)?;
        let values = to_values(&kind, &numbers, children)?;
        Ok((name.into_bytes(), Column::new(values)))
    };
    let named = fields.into_iter().map(to_named);
    Ok(Members::new(named.collect::<PyResult<_>>()?))
}

/// Refuses columns within columns that would take too much of a thread's stack.
pub fn check_depth(depth: usize) -> PyResult<()> {
    if depth > DEEPEST {
        let text = format!("columns are more than {DEEPEST} levels deep");
        return Err(PyValueError::new_err(text));
    }
    Ok(())
}

fn to_values(kind: &str, numbers: &[usize], children: Members) -> PyResult<Values> {
    let number = |kind, width| Values::Number {
        kind,
        width,
        bytes: Vec::new(),
    };
    let ends = vec![0];
    Ok(match (kind, numbers) {
        ("text", &[bytes @ (4 | 8)]) => Values::Text(Texts::new(bytes == 8)),
        ("signed", &[width @ (1 | 2 | 4 | 8)]) => number(Number::Signed, width),
        ("unsigned", &[width @ (1 | 2 | 4 | 8)]) => number(Number::Unsigned, width),
        ("float", &[width @ (4 | 8)]) => number(Number::Float, width),
        ("bool", &[]) => Values::Bool(Bits::default()),
        ("date", &[width @ (4 | 8)]) => number(Number::Date, width),
        ("time", &[digits @ (0 | 3 | 6 | 9)]) => {
            let digits = digits as u32;
            number(Number::Time { digits }, 8)
        }
        ("decimal", &[width @ (16 | 32), precision, scale @ 0..=38]) => {
            number(Number::Decimal { precision, scale }, width)
        }
        ("struct", &[]) => Values::Struct(children),
        ("list", &[]) => Values::List {
            ends,
            item: only(children)?,
        },
        ("map", &[]) => Values::Map {
            ends,
            names: Texts::new(false),
            item: only(children)?,
        },
        _ => return Err(unknown()),
    })
}

fn only(mut children: Members) -> PyResult<Box<Column>> {
    let item = children.columns.pop().ok_or_else(unknown)?;
    Ok(Box::new(item))
}

fn unknown() -> PyErr {
    PyValueError::new_err("kind of a column isn't known")
}

/// Returns a column as its rows, nulls, buffers and children.
fn array<'py>(py: Python<'py>, column: &Column) -> PyResult<Bound<'py, PyAny>> {
    let Bits { bytes, len, unset } = &column.valid;
    let valid = (*unset > 0).then(|| PyBytes::new(py, bytes));
    let children = PyList::empty(py);
    let buffers = match &column.values {
        Values::Text(texts) => text_buffers(py, texts)?,
        Values::Bool(bits) => vec![PyBytes::new(py, &bits.bytes)],
        Values::Number { bytes, .. } => vec![PyBytes::new(py, bytes)],
        Values::Struct(members) => {
            for column in &members.columns {
                children.append(array(py, column)?)?;
            }
            Vec::new()
        }
        Values::List { ends, item } => {
            children.append(array(py, item)?)?;
            vec![bounds(py, ends)?]
        }
        Values::Map { ends, names, item } => {
            let (count, names) = (names.ends.len() - 1, text_buffers(py, names)?);
            children.append(described(py, count, 0, None, names, PyList::empty(py))?)?;
            children.append(array(py, item)?)?;
            vec![bounds(py, ends)?]
        }
    };
    described(py, *len, *unset, valid, buffers, children)
}

fn described<'py>(
    py: Python<'py>,
    rows: usize,
    nulls: usize,
    valid: Option<Bound<'py, PyBytes>>,
    buffers: Vec<Bound<'py, PyBytes>>,
    children: Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyAny>> {
    let buffers: Vec<_> = [valid]
        .into_iter()
        .chain(buffers.into_iter().map(Some))
        .collect();
    Ok((rows, nulls, buffers, children)
        .into_pyobject(py)?
        .into_any())
}

fn text_buffers<'py>(py: Python<'py>, texts: &Texts) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let bounds = match texts.is_large {
        true => words(
            py,
            texts.ends.iter().map(|end| i64::from(*end).to_le_bytes()),
        ),
        false => bounds(py, &texts.ends),
    };
    Ok(vec![bounds?, PyBytes::new(py, &texts.data)])
}

fn bounds<'py>(py: Python<'py>, ends: &[i32]) -> PyResult<Bound<'py, PyBytes>> {
    words(py, ends.iter().map(|end| end.to_le_bytes()))
}
