//! `Schema` of typed columns, and the columns of documents.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::{caught, words, Leading};
use crate::columns::{self, Bits, Column, Fields, Kind, Values};

pub const DEEPEST: usize = 64;

/// Columns of documents.
#[pyclass(frozen, module = "gazette_aio.message.core")]
pub struct Schema(Fields);

/// Name and kind of a column, numbers of the kind, and children.
#[derive(FromPyObject)]
pub struct Field(String, String, Vec<usize>, Vec<Py<PyAny>>);

#[pymethods]
impl Schema {
    #[new]
    fn new(py: Python<'_>, fields: Vec<Py<PyAny>>) -> PyResult<Self> {
        Ok(Schema(to_fields(py, fields, 0)?))
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
        let parts = parts
            .into_iter()
            .map(|part| {
                Ok((
                    part.rows,
                    children(py, &self.0, &part.members.columns)?,
                    part.refused,
                ))
            })
            .collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, parts)
    }
}

fn to_fields(py: Python<'_>, fields: Vec<Py<PyAny>>, depth: usize) -> PyResult<Fields> {
    if depth > DEEPEST {
        return Err(PyValueError::new_err(format!(
            "columns are more than {DEEPEST} levels deep"
        )));
    }
    let to_field = |field: Py<PyAny>| {
        let Field(name, kind, numbers, children) = field.extract(py)?;
        let children = to_fields(py, children, depth + 1)?;
        Ok((name.into_bytes(), to_kind(&kind, &numbers, children)?))
    };
    Ok(Fields::new(
        fields.into_iter().map(to_field).collect::<PyResult<_>>()?,
    ))
}

fn to_kind(kind: &str, numbers: &[usize], children: Fields) -> PyResult<Kind> {
    Ok(match (kind, numbers) {
        ("text", &[bytes @ (4 | 8)]) => Kind::Text {
            is_large: bytes == 8,
        },
        ("signed", &[bytes @ (1 | 2 | 4 | 8)]) => Kind::Int {
            bytes,
            is_signed: true,
        },
        ("unsigned", &[bytes @ (1 | 2 | 4 | 8)]) => Kind::Int {
            bytes,
            is_signed: false,
        },
        ("float", &[bytes @ (4 | 8)]) => Kind::Float { bytes },
        ("bool", &[]) => Kind::Bool,
        ("date", &[bytes @ (4 | 8)]) => Kind::Date { bytes },
        ("time", &[digits @ (0 | 3 | 6 | 9)]) => Kind::Time {
            digits: digits as u32,
        },
        ("decimal", &[bytes @ (16 | 32), precision, scale @ 0..=38]) => Kind::Decimal {
            bytes,
            precision,
            scale,
        },
        ("struct", &[]) => Kind::Struct(children),
        ("list", &[]) => Kind::List(Box::new(children.only().ok_or_else(unknown)?)),
        ("map", &[]) => Kind::Map(Box::new(children.only().ok_or_else(unknown)?)),
        _ => return Err(unknown()),
    })
}

fn unknown() -> PyErr {
    PyValueError::new_err("kind of a column isn't known")
}

fn children<'py>(
    py: Python<'py>,
    fields: &Fields,
    columns: &[Column],
) -> PyResult<Bound<'py, PyList>> {
    let arrays = fields
        .kinds()
        .zip(columns)
        .map(|(kind, column)| arrow(py, kind, column));
    PyList::new(py, arrays.collect::<PyResult<Vec<_>>>()?)
}

/// Returns a column as its rows, nulls, buffers and children.
fn arrow<'py>(py: Python<'py>, kind: &Kind, column: &Column) -> PyResult<Bound<'py, PyAny>> {
    let Bits { bytes, len, unset } = &column.valid;
    let mut buffers = vec![(*unset > 0).then(|| PyBytes::new(py, bytes))];
    let mut inner = PyList::empty(py);
    match (&column.values, kind) {
        (Values::Text { ends, data }, Kind::Text { is_large }) => {
            buffers.push(Some(bounds(py, ends, if *is_large { 8 } else { 4 })?));
            buffers.push(Some(PyBytes::new(py, data)));
        }
        (Values::Int(values), kind) => {
            let size = match kind {
                Kind::Int { bytes, .. } | Kind::Date { bytes } => *bytes,
                _ => 8,
            };
            buffers.push(Some(integers(py, values.iter().copied(), size)?));
        }
        (Values::Float(values), Kind::Float { bytes: 4 }) => {
            buffers.push(Some(words(
                py,
                values.iter().map(|value| (*value as f32).to_le_bytes()),
            )?));
        }
        (Values::Float(values), _) => {
            buffers.push(Some(words(
                py,
                values.iter().map(|value| value.to_le_bytes()),
            )?));
        }
        (Values::Bool(bits), _) => buffers.push(Some(PyBytes::new(py, &bits.bytes))),
        (Values::Decimal(values), Kind::Decimal { bytes: 16, .. }) => {
            buffers.push(Some(words(
                py,
                values.iter().map(|value| value.to_le_bytes()),
            )?));
        }
        (Values::Decimal(values), _) => {
            let halves = values.iter().map(|value| {
                let mut bytes = [if *value < 0 { 0xff } else { 0 }; 32];
                bytes[..16].copy_from_slice(&value.to_le_bytes());
                bytes
            });
            buffers.push(Some(words(py, halves)?));
        }
        (Values::Struct(members), Kind::Struct(fields)) => {
            inner = children(py, fields, &members.columns)?;
        }
        (Values::List { ends, item }, Kind::List(kind)) => {
            buffers.push(Some(bounds(py, ends, 4)?));
            inner.append(arrow(py, kind, item)?)?;
        }
        (Values::Map { ends, names, item }, Kind::Map(kind)) => {
            buffers.push(Some(bounds(py, ends, 4)?));
            inner.append(arrow(py, &Kind::Text { is_large: false }, names)?)?;
            inner.append(arrow(py, kind, item)?)?;
        }
        _ => return Err(unknown()),
    }
    Ok((len, unset, buffers, inner).into_pyobject(py)?.into_any())
}

fn bounds<'py>(py: Python<'py>, ends: &[i32], size: usize) -> PyResult<Bound<'py, PyBytes>> {
    integers(
        py,
        Leading(Some(0), ends.iter().map(|end| i64::from(*end))),
        size,
    )
}

/// Returns integers in so many bytes each.
fn integers(
    py: Python<'_>,
    values: impl ExactSizeIterator<Item = i64>,
    size: usize,
) -> PyResult<Bound<'_, PyBytes>> {
    match size {
        1 => words(py, values.map(|value| (value as i8).to_le_bytes())),
        2 => words(py, values.map(|value| (value as i16).to_le_bytes())),
        4 => words(py, values.map(|value| (value as i32).to_le_bytes())),
        _ => words(py, values.map(i64::to_le_bytes)),
    }
}
