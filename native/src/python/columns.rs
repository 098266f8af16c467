//! `Schema` of typed columns, and the columns of documents.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{words, Leading};
use crate::columns::{Bits, Column, Kind, Values};

/// Returns a column as its kind, rows, nulls, buffers and children.
pub fn arrow<'py>(py: Python<'py>, column: &Column) -> PyResult<Bound<'py, PyAny>> {
    let Bits { bytes, len, unset } = &column.valid;
    let valid = if *unset == 0 {
        py.None().into_bound(py)
    } else {
        PyBytes::new(py, bytes).into_any()
    };
    let ends = |ends: &Vec<i32>| {
        words(
            py,
            Leading(Some([0; 4]), ends.iter().map(|end| end.to_le_bytes())),
        )
    };
    let mut children = Vec::new();
    let mut buffers = vec![valid];
    let kind = match &column.values {
        Values::Text {
            ends: text_ends,
            data,
        } => {
            buffers.push(ends(text_ends)?.into_any());
            buffers.push(PyBytes::new(py, data).into_any());
            "text"
        }
        Values::Int(values) | Values::Time(values) => {
            buffers.push(words(py, values.iter().map(|value| value.to_le_bytes()))?.into_any());
            "int"
        }
        Values::Float(values) => {
            buffers.push(words(py, values.iter().map(|value| value.to_le_bytes()))?.into_any());
            "float"
        }
        Values::Bool(bits) => {
            buffers.push(PyBytes::new(py, &bits.bytes).into_any());
            "bool"
        }
        Values::Struct(members) => {
            children = members
                .columns
                .iter()
                .map(|(_, column)| arrow(py, column))
                .collect::<PyResult<Vec<_>>>()?;
            "struct"
        }
        Values::List {
            ends: list_ends,
            item,
        } => {
            buffers.push(ends(list_ends)?.into_any());
            children.push(arrow(py, item)?);
            "list"
        }
    };
    Ok((kind, len, unset, buffers, children)
        .into_pyobject(py)?
        .into_any())
}

/// Columns of documents.
#[pyclass(frozen, module = "gazette_aio.message.core")]
pub struct Schema(pub Vec<(String, Kind)>);

#[derive(FromPyObject)]
pub struct Field(String, String, Vec<Field>);

#[pymethods]
impl Schema {
    /// Args are names, kinds and children.
    #[new]
    fn new(fields: Vec<Field>) -> PyResult<Self> {
        Ok(Schema(
            fields.into_iter().map(to_kind).collect::<PyResult<_>>()?,
        ))
    }
}

fn to_kind(field: Field) -> PyResult<(String, Kind)> {
    let Field(name, kind, children) = field;
    let mut children = children
        .into_iter()
        .map(to_kind)
        .collect::<PyResult<Vec<_>>>()?;
    let kind = match kind.as_str() {
        "text" => Kind::Text,
        "int" => Kind::Int,
        "float" => Kind::Float,
        "bool" => Kind::Bool,
        "time" => Kind::Time,
        "struct" => Kind::Struct(children),
        "list" if children.len() == 1 => Kind::List(Box::new(children.remove(0).1)),
        _ => return Err(PyValueError::new_err(format!("kind {kind} isn't known"))),
    };
    Ok((name, kind))
}

