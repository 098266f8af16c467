//! `Batch` of messages.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::columns::Schema;
use super::{identity, words};
use crate::sequence::Row;
use crate::uuid::ACK;

/// Committed messages, in their order.
#[pyclass(frozen, sequence, module = "gazette_aio.message.core")]
pub struct Batch(pub Vec<Row>);

impl Batch {
    pub fn rows(&self, start: i64, stop: i64) -> PyResult<&[Row]> {
        let (start, stop) = (usize::try_from(start), usize::try_from(stop));
        let rows = start.and_then(|start| Ok(self.0.get(start..stop?)));
        let rows = rows.unwrap_or(None);
        rows.ok_or_else(|| PyIndexError::new_err("messages aren't of the batch"))
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn payloads<'py>(
        &self,
        py: Python<'py>,
        start: i64,
        stop: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        let payloads = self.rows(start, stop)?.iter().map(|row| &row.frame.payload);
        PyList::new(py, payloads.map(|payload| PyBytes::new(py, payload)))
    }

    /// Returns the bytes of messages, each followed by a newline.
    #[pyo3(signature = (start, stop, *, acks=true))]
    fn lines<'py>(
        &self,
        py: Python<'py>,
        start: i64,
        stop: i64,
        acks: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let rows = self.rows(start, stop)?.iter();
        joined(py, rows.filter(|row| acks || row.stamp.flags != ACK), b"\n")
    }

    /// Returns lists of begins, ends, clocks, flags and producers. `flags` are the objects of known ones.
    fn places<'py>(
        &self,
        py: Python<'py>,
        start: i64,
        stop: i64,
        flags: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let rows = self.rows(start, stop)?;
        let kind = flags.get_item(0)?.get_type();
        let to_flags = |row: &Row| {
            let known = flags.get_item(usize::from(row.stamp.flags));
            known.or_else(|_| kind.call1((row.stamp.flags,)))
        };
        let flags = rows.iter().map(to_flags).collect::<PyResult<Vec<_>>>()?;
        let mut last = (0, PyBytes::new(py, &identity(0)));
        let producers = rows.iter().map(|row| {
            let id = row.stamp.producer;
            if id != last.0 {
                last = (id, PyBytes::new(py, &identity(id)));
            }
            last.1.clone()
        });
        let producers = PyList::new(py, producers)?;
        let columns = [
            PyList::new(py, rows.iter().map(|row| row.frame.begin))?,
            PyList::new(py, rows.iter().map(|row| row.frame.end))?,
            PyList::new(py, rows.iter().map(|row| row.stamp.clock))?,
            PyList::new(py, flags)?,
            producers,
        ];
        PyTuple::new(py, columns)
    }

    /// Returns the indices of acknowledgements, and of messages with explicit UUIDs.
    fn unusual(&self, start: i64, stop: i64) -> PyResult<(Vec<i64>, Vec<i64>)> {
        let rows = self.rows(start, stop)?;
        let of = |is: fn(&Row) -> bool| {
            let numbered = (start..).zip(rows);
            numbered
                .filter(|(_, row)| is(row))
                .map(|(at, _)| at)
                .collect()
        };
        Ok((
            of(|row| row.stamp.flags == ACK),
            of(|row| !row.stamp.is_time),
        ))
    }

    /// Returns columns of producers, clocks, flags, begins and ends, as numbers in memory.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let rows = self.0.iter();
        let columns = [
            words(py, rows.clone().map(|row| row.stamp.producer.to_le_bytes()))?,
            words(py, rows.clone().map(|row| row.stamp.clock.to_le_bytes()))?,
            words(py, rows.clone().map(|row| row.stamp.flags.to_le_bytes()))?,
            words(py, rows.clone().map(|row| row.frame.begin.to_le_bytes()))?,
            words(py, rows.map(|row| row.frame.end.to_le_bytes()))?,
        ];
        PyTuple::new(py, columns)
    }

    /// Returns messages as the buffers of an array of bytes: offsets and data.
    fn values<'py>(
        &self,
        py: Python<'py>,
        start: i64,
        stop: i64,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let rows = self.rows(start, stop)?;
        let mut offsets = vec![[0; 4]];
        let mut end = 0;
        for row in rows {
            end += row.frame.payload.len();
            let end = i32::try_from(end);
            let end = end.map_err(|_| PyValueError::new_err("messages take more than 2 GiB"))?;
            offsets.push(end.to_le_bytes());
        }
        let data = joined(py, rows.iter(), b"")?;
        Ok((words(py, offsets.into_iter())?, data))
    }

    /// Parses messages as documents, without the interpreter's lock, in so many threads. Returns
    /// parts: numbers of rows, columns, and indices of messages that aren't among the rows.
    fn documents<'py>(
        &self,
        py: Python<'py>,
        schema: &Schema,
        threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let rows = self.0.iter();
        let documents: Vec<_> = rows.map(|row| row.frame.payload.as_ref()).collect();
        schema.parts(py, &documents, threads)
    }
}

/// Returns the bytes of messages, each followed by `end`.
fn joined<'py, 'a>(
    py: Python<'py>,
    rows: impl Iterator<Item = &'a Row> + Clone,
    end: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let payloads = rows.map(|row| &row.frame.payload);
    let size = payloads.clone().map(|payload| payload.len() + end.len());
    PyBytes::new_with(py, size.sum(), |mut place| {
        for payload in payloads {
            let (value, rest) = place.split_at_mut(payload.len());
            value.copy_from_slice(payload);
            let (value, rest) = rest.split_at_mut(end.len());
            value.copy_from_slice(end);
            place = rest;
        }
        Ok(())
    })
}
