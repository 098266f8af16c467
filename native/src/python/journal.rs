//! `Journal` and its `Batch`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::columns::{arrow, Schema};
use super::{words, Leading};
use crate::columns::Members;
use crate::frames::Framing;
use crate::journal::{self, Output, Place};
use crate::sequence::{Bounds, Row, Sequencer};
use crate::uuid::ACK;

type State = ([u8; 6], u64, u64, i64);

/// Content of one journal, from chunks to committed messages.
#[pyclass(frozen, module = "gazette_aio.message.core")]
pub struct Journal(Mutex<journal::Journal>);

impl Journal {
    fn lock(&self) -> MutexGuard<'_, journal::Journal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Journal {
    /// Args are the framing, `lines` or `fixed`; where UUIDs are: a prefix and a path of JSON, or a
    /// prefix of raw bytes, or neither; and states of producers, or None to return all messages.
    #[new]
    #[pyo3(signature = (framing, offset, *, prefix=None, path=None, states=None, max_frame_bytes=1 << 30,
        max_pending_bytes=64 << 20, strict=false, skip_acks=false))]
    #[expect(clippy::too_many_arguments)]
    fn new(
        framing: &str,
        offset: i64,
        prefix: Option<Vec<u8>>,
        path: Option<Vec<Vec<u8>>>,
        states: Option<Vec<State>>,
        max_frame_bytes: usize,
        max_pending_bytes: usize,
        strict: bool,
        skip_acks: bool,
    ) -> PyResult<Self> {
        let framing = match framing {
            "lines" => Framing::Lines,
            "fixed" => Framing::Fixed,
            _ => return Err(PyValueError::new_err("framing is neither lines nor fixed")),
        };
        let place = match (prefix, path) {
            (Some(prefix), Some(path)) => Place::Json { prefix, path },
            (Some(prefix), None) => Place::Raw { prefix },
            (None, _) => Place::Unknown,
        };
        let sequencer = states.map(|states| {
            let of = |(id, min, max, begin): &State| {
                (
                    number(id),
                    Bounds {
                        min: *min,
                        max: *max,
                        begin: *begin,
                    },
                )
            };
            let states: Vec<_> = states.iter().map(of).collect();
            Sequencer::new(offset, &states, skip_acks)
        });
        let framing = (framing, max_frame_bytes);
        let journal = journal::Journal::new(
            framing,
            place,
            offset,
            sequencer,
            max_pending_bytes,
            strict,
            skip_acks,
        );
        Ok(Journal(Mutex::new(journal)))
    }

    /// Offset of the next message to process.
    #[getter]
    fn offset(&self) -> i64 {
        self.lock().offset()
    }

    /// Bytes of content that aren't processed.
    #[getter]
    fn buffered(&self) -> usize {
        self.lock().splitter().buffered()
    }

    #[getter]
    fn pending_bytes(&self) -> usize {
        self.lock()
            .sequencer()
            .map_or(0, |sequencer| sequencer.pending_bytes())
    }

    #[getter]
    fn has_pending(&self) -> bool {
        self.lock()
            .sequencer()
            .is_some_and(|sequencer| sequencer.has_pending())
    }

    /// Retains at most so many bytes of pending messages. Others are read again if they commit.
    fn evict(&self, limit: usize) {
        if let Some(sequencer) = self.lock().sequencer() {
            sequencer.evict(limit);
        }
    }

    /// Takes content that follows.
    fn feed(&self, chunk: PyBackedBytes) {
        self.lock().splitter().feed(Bytes::from_owner(chunk));
    }

    fn end(&self) {
        self.lock().splitter().end();
    }

    fn jump(&self, offset: i64) -> usize {
        self.lock().splitter().jump(offset)
    }

    /// Processes about `limit` bytes, without the interpreter's lock. Returns a Batch; or None if
    /// more content is needed; or a tuple of what else is next.
    fn work<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyAny>> {
        let output = py.detach(|| self.lock().work(limit));
        to_python(py, output)
    }

    /// Continues with an odd message, given the bytes of its UUID.
    fn resolve<'py>(&self, py: Python<'py>, uuid: [u8; 16]) -> PyResult<Bound<'py, PyAny>> {
        let output = self.lock().resolve(&uuid);
        to_python(py, output)
    }

    /// Leaves an odd message out.
    fn leave_out(&self) -> (i64, i64) {
        self.lock().pass()
    }

    /// Notes that messages `[start, stop)` of a batch were delivered.
    fn settle(&self, batch: &Batch, start: usize, stop: usize) {
        if let Some(sequencer) = self.lock().sequencer() {
            let last = stop.checked_sub(1).map(|last| &batch.0[last]);
            sequencer.settle(stop - start, last, stop == batch.0.len());
        }
    }

    /// Notes that all content processed so far had nothing to deliver.
    fn settle_all(&self) {
        if let Some(sequencer) = self.lock().sequencer() {
            sequencer.settle(0, None, true);
        }
    }

    #[pyo3(signature = (prune_horizon_ns=0))]
    fn checkpoint<'py>(
        &self,
        py: Python<'py>,
        prune_horizon_ns: u64,
    ) -> PyResult<(i64, Bound<'py, PyList>)> {
        let mut journal = self.lock();
        let Some(sequencer) = journal.sequencer() else {
            return Err(PyValueError::new_err("all is read"));
        };
        let (offset, states) = sequencer.checkpoint(prune_horizon_ns);
        let of = |(id, Bounds { min, max, begin }): (u64, Bounds)| {
            (PyBytes::new(py, &identity(id)), min, max, begin)
        };
        Ok((offset, PyList::new(py, states.into_iter().map(of))?))
    }

    fn begin_replay(&self) -> Option<(i64, i64)> {
        self.lock().begin_replay()
    }

    fn feed_replay(&self, chunk: PyBackedBytes) {
        if let Some(splitter) = self.lock().again() {
            splitter.feed(Bytes::from_owner(chunk));
        }
    }

    /// Continues a replay behind a gap.
    fn jump_replay(&self, offset: i64) {
        if let Some(splitter) = self.lock().again() {
            splitter.jump(offset);
        }
    }

    fn end_replay(&self) -> Batch {
        Batch(self.lock().end_replay())
    }
}

fn to_python(py: Python<'_>, output: Output) -> PyResult<Bound<'_, PyAny>> {
    let told = match output {
        Output::Rows(rows) => return Ok(Bound::new(py, Batch(rows))?.into_any()),
        Output::Idle => return Ok(py.None().into_bound(py)),
        Output::Progress => ("progress",).into_pyobject(py)?,
        Output::Odd(payload) => ("odd", PyBytes::new(py, &payload)).into_pyobject(py)?,
        Output::Refused(r) => ("refused", r.kind, r.begin, r.end, r.size).into_pyobject(py)?,
        Output::Replay(begin, end) => ("replay", begin, end).into_pyobject(py)?,
        Output::Changed(text) => ("changed", text).into_pyobject(py)?,
    };
    Ok(told.into_any())
}

/// Committed messages, in their order.
#[pyclass(frozen, sequence, module = "gazette_aio.message.core")]
pub struct Batch(Vec<Row>);

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn payloads<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        PyList::new(
            py,
            self.0[start..stop]
                .iter()
                .map(|row| PyBytes::new(py, &row.payload)),
        )
    }

    /// Returns the bytes of messages, each followed by a newline.
    #[pyo3(signature = (start, stop, *, acks=true))]
    fn lines<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
        acks: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let wanted = || {
            self.0[start..stop]
                .iter()
                .filter(|row| acks || row.flags != ACK)
        };
        let size = wanted().map(|row| row.payload.len() + 1).sum();
        PyBytes::new_with(py, size, |mut place| {
            for row in wanted() {
                let (line, rest) = place.split_at_mut(row.payload.len() + 1);
                line[..row.payload.len()].copy_from_slice(&row.payload);
                line[row.payload.len()] = b'\n';
                place = rest;
            }
            Ok(())
        })
    }

    /// Returns lists of begins, ends, clocks, flags and producers. `flags` are the objects of known ones.
    #[expect(clippy::type_complexity)]
    fn places<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
        flags: &Bound<'py, PyTuple>,
    ) -> PyResult<(
        Bound<'py, PyList>,
        Bound<'py, PyList>,
        Bound<'py, PyList>,
        Bound<'py, PyList>,
        Bound<'py, PyList>,
    )> {
        let rows = &self.0[start..stop];
        let (kind, known) = (flags.get_item(0)?.get_type(), flags.len());
        let mut flag_objects = Vec::with_capacity(rows.len());
        let mut producers = Vec::with_capacity(rows.len());
        let mut last: Option<(u64, Bound<'py, PyBytes>)> = None;
        for row in rows {
            let number = usize::from(row.flags);
            flag_objects.push(if number < known {
                flags.get_item(number)?
            } else {
                kind.call1((number,))?
            });
            let producer = match &last {
                Some((id, bytes)) if *id == row.producer => bytes.clone(),
                _ => PyBytes::new(py, &identity(row.producer)),
            };
            last = Some((row.producer, producer.clone()));
            producers.push(producer);
        }
        Ok((
            PyList::new(py, rows.iter().map(|row| row.begin))?,
            PyList::new(py, rows.iter().map(|row| row.end))?,
            PyList::new(py, rows.iter().map(|row| row.clock))?,
            PyList::new(py, flag_objects)?,
            PyList::new(py, producers)?,
        ))
    }

    /// Returns the indices of acknowledgements, and of messages with explicit UUIDs.
    fn unusual(&self, start: usize, stop: usize) -> (Vec<usize>, Vec<usize>) {
        let of = |is: fn(&Row) -> bool| (start..stop).filter(|at| is(&self.0[*at])).collect();
        (of(|row| row.flags == ACK), of(|row| row.is_explicit))
    }

    /// Returns columns of producers, clocks, flags, begins and ends, as numbers in memory.
    #[expect(clippy::type_complexity)]
    fn columns<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
    )> {
        let rows = &self.0;
        Ok((
            words(py, rows.iter().map(|row| row.producer.to_le_bytes()))?,
            words(py, rows.iter().map(|row| row.clock.to_le_bytes()))?,
            words(py, rows.iter().map(|row| row.flags.to_le_bytes()))?,
            words(py, rows.iter().map(|row| row.begin.to_le_bytes()))?,
            words(py, rows.iter().map(|row| row.end.to_le_bytes()))?,
        ))
    }

    /// Returns the messages as the buffers of an array of bytes: offsets and data.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let size = self.0.iter().map(|row| row.payload.len()).sum();
        let mut end = 0;
        let ends = self.0.iter().map(|row| {
            end += row.payload.len() as i32;
            end.to_le_bytes()
        });
        let offsets = words(py, Leading(Some([0; 4]), ends))?;
        let data = PyBytes::new_with(py, size, |mut place| {
            for row in &self.0 {
                let (value, rest) = place.split_at_mut(row.payload.len());
                value.copy_from_slice(&row.payload);
                place = rest;
            }
            Ok(())
        })?;
        Ok((offsets, data))
    }

    /// Parses messages as documents, without the interpreter's lock. Returns their columns, and the
    /// index and error of each message that isn't among them.
    fn documents<'py>(
        &self,
        py: Python<'py>,
        schema: &Schema,
    ) -> PyResult<(Bound<'py, PyAny>, Vec<(usize, &'static str)>)> {
        let (members, rows, errors) = py.detach(|| {
            let mut members = Members::new(&schema.0);
            let (mut rows, mut errors) = (0, Vec::new());
            for (index, row) in self.0.iter().enumerate() {
                match members.read_document(&row.payload, rows) {
                    Ok(()) => rows += 1,
                    Err(fault) => errors.push((index, fault.0)),
                }
            }
            (members, rows, errors)
        });
        let columns = members
            .columns
            .iter()
            .map(|(_, column)| arrow(py, column))
            .collect::<PyResult<Vec<_>>>()?;
        Ok(((rows, columns).into_pyobject(py)?.into_any(), errors))
    }
}

fn number(id: &[u8; 6]) -> u64 {
    id.iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn identity(number: u64) -> [u8; 6] {
    number.to_be_bytes()[2..].try_into().expect("there are six")
}

