//! `Journal` of content.

use std::sync::Mutex;

use bytes::Bytes;
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyList};

use super::batch::Batch;
use super::{caught, identity};
use crate::frames::{Frame, Framing};
use crate::journal::{self, Format, Output, Place};
use crate::sequence::{Bounds, Sequencer};
use crate::uuid::number;
use crate::Misuse;

type State = ([u8; 6], u64, u64, i64);

/// Content of one journal, from chunks to committed messages.
#[pyclass(frozen, module = "gazette_aio.message.core")]
pub struct Journal(Mutex<journal::Journal>);

impl Journal {
    /// Calls a function of the journal. A panic is an error, and so are all calls after it: what
    /// the journal holds may be wrong.
    fn with<T>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut journal::Journal) -> Result<T, Misuse>,
    ) -> PyResult<T> {
        let guard = self.0.lock_py_attached(py);
        let mut guard = guard.map_err(|_| failed())?;
        // The guard is dropped within, so that a panic poisons the lock.
        Ok(caught(move || call(&mut guard))??)
    }

    /// Calls a function of the sequencer, if messages are sequenced.
    fn of_sequencer<T: Default>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Sequencer) -> T,
    ) -> PyResult<T> {
        self.with(py, |journal| {
            Ok(journal.sequencer.as_mut().map(call).unwrap_or_default())
        })
    }

    /// Does work without the interpreter's lock, and returns what it has come to.
    fn output<'py>(
        &self,
        py: Python<'py>,
        work: impl FnOnce(&mut journal::Journal) -> Result<Output, Misuse> + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let output = py.detach(|| {
            let mut guard = self.0.lock().map_err(|_| failed())?;
            caught(move || work(&mut guard))
        })?;
        to_python(py, output?)
    }
}

fn failed() -> PyErr {
    PyRuntimeError::new_err("the core failed before")
}

impl From<Misuse> for PyErr {
    fn from(misuse: Misuse) -> Self {
        match misuse {
            Misuse::Call(text) => PyValueError::new_err(text),
            Misuse::Overflow => PyOverflowError::new_err("offset is too large"),
        }
    }
}

#[pymethods]
impl Journal {
    /// Args are the framing: `lines`, `fixed`, or `frames` that are split elsewhere; where UUIDs
    /// are: text after a prefix and before a suffix, or in JSON at a path, or 16 bytes after a
    /// prefix, or none of these; and states of producers, or None to return all messages. With
    /// `skip_errors`, messages before and after bytes that aren't messages are returned together.
    #[new]
    #[pyo3(signature = (framing, offset, *, prefix=None, suffix=None, path=None, states=None,
        entering=true, max_frame_bytes=1 << 30, max_pending_bytes=64 << 20, strict=false,
        skip_acks=false, skip_errors=false))]
    #[expect(clippy::too_many_arguments)]
    fn new(
        framing: &str,
        offset: i64,
        prefix: Option<Vec<u8>>,
        suffix: Option<Vec<u8>>,
        path: Option<Vec<Vec<u8>>>,
        states: Option<Vec<State>>,
        entering: bool,
        max_frame_bytes: usize,
        max_pending_bytes: usize,
        strict: bool,
        skip_acks: bool,
        skip_errors: bool,
    ) -> PyResult<Self> {
        let framing = match framing {
            "lines" => Framing::Lines,
            "fixed" => Framing::Fixed,
            "frames" => Framing::Frames,
            _ => return Err(Misuse::Call("framing isn't lines, fixed or frames").into()),
        };
        let place = match (prefix, suffix, path) {
            (prefix, Some(suffix), path) => Place::Text {
                prefix,
                suffix,
                path,
            },
            (Some(prefix), None, None) => Place::Raw { prefix },
            (None, None, None) => Place::Unknown,
            _ => return Err(Misuse::Call("text has a suffix").into()),
        };
        let sequencer = states.map(|states| {
            let of = |(id, min, max, begin): &State| {
                let (min, max, begin) = (*min, *max, *begin);
                (number(id), Bounds { min, max, begin })
            };
            let states: Vec<_> = states.iter().map(of).collect();
            Sequencer::new(offset, &states, entering, skip_acks)
        });
        let format = Format {
            framing,
            largest: max_frame_bytes,
            place,
            is_strict: strict,
        };
        let journal = journal::Journal::new(
            format,
            offset,
            sequencer,
            max_pending_bytes,
            skip_acks,
            skip_errors,
        );
        Ok(Journal(Mutex::new(journal)))
    }

    /// Offset of the next message to process.
    #[getter]
    fn offset(&self, py: Python<'_>) -> PyResult<i64> {
        self.with(py, |journal| Ok(journal.content().offset()))
    }

    /// Bytes of content that aren't processed.
    #[getter]
    fn buffered(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |journal| Ok(journal.content().buffered()))
    }

    #[getter]
    fn pending_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.of_sequencer(py, |sequencer| sequencer.pending_bytes)
    }

    #[getter]
    fn pending_rows(&self, py: Python<'_>) -> PyResult<usize> {
        self.of_sequencer(py, |sequencer| sequencer.pending_rows)
    }

    /// Offset after the last duplicate, or acknowledgement that rolled back: nothing reports it later.
    #[getter]
    fn passed(&self, py: Python<'_>) -> PyResult<i64> {
        self.of_sequencer(py, |sequencer| sequencer.passed)
    }

    #[getter]
    fn has_pending(&self, py: Python<'_>) -> PyResult<bool> {
        self.of_sequencer(py, Sequencer::has_pending)
    }

    /// Numbers, so far, of messages with unexpected flags, acknowledgements older than the last one,
    /// messages outside of transactions that discarded pending ones, and producers that were
    /// forgotten with what they had pending.
    #[getter]
    fn remarks(&self, py: Python<'_>) -> PyResult<(usize, usize, usize, usize)> {
        let it = self.of_sequencer(py, |sequencer| sequencer.remarks)?;
        Ok((it.unknown_flags, it.old_acks, it.mixed, it.stale))
    }

    /// Retains at most so many bytes and rows of pending messages. Others are read again if they
    /// commit.
    #[pyo3(signature = (limit_bytes, limit_rows=None))]
    fn evict(&self, py: Python<'_>, limit_bytes: usize, limit_rows: Option<usize>) -> PyResult<()> {
        self.of_sequencer(py, |sequencer| {
            sequencer.evict(limit_bytes, limit_rows.unwrap_or(usize::MAX));
        })
    }

    /// Returns the bytes of the retained pending messages, in any order. They aren't those of a
    /// commit that needs a replay.
    fn retained<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let retained = self.of_sequencer(py, |sequencer| sequencer.retained())?;
        PyList::new(py, retained.iter().map(|payload| PyBytes::new(py, payload)))
    }

    /// Takes content that follows.
    fn feed(&self, py: Python<'_>, chunk: PyBackedBytes) -> PyResult<()> {
        let chunk = Bytes::from_owner(chunk);
        self.with(py, |journal| journal.content().feed(chunk))
    }

    /// Takes messages that follow, and the offsets of their frames.
    fn feed_frames(&self, py: Python<'_>, frames: Frames) -> PyResult<()> {
        let frames = frames_of(frames);
        self.with(py, |journal| journal.content().feed_frames(frames))
    }

    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |journal| {
            journal.content().end();
            Ok(())
        })
    }

    fn jump(&self, py: Python<'_>, offset: i64) -> PyResult<usize> {
        self.with(py, |journal| Ok(journal.content().jump(offset)))
    }

    /// Processes about `limit_bytes` of content, without the interpreter's lock. Returns a Batch; or
    /// None if more content is needed; or a tuple of what else is next.
    fn work<'py>(&self, py: Python<'py>, limit_bytes: usize) -> PyResult<Bound<'py, PyAny>> {
        if limit_bytes == 0 {
            return Err(Misuse::Call("limit is zero").into());
        }
        self.output(py, |journal| Ok(journal.work(limit_bytes)))
    }

    /// Continues with the first odd messages, given the bytes of their UUIDs.
    fn resolve<'py>(&self, py: Python<'py>, uuids: Vec<[u8; 16]>) -> PyResult<Bound<'py, PyAny>> {
        self.output(py, |journal| journal.resolve(&uuids))
    }

    /// Leaves the first odd message out.
    fn leave_out(&self, py: Python<'_>) -> PyResult<(i64, i64)> {
        self.with(py, journal::Journal::leave_out)
    }

    /// Commits pending messages up to clocks of their producers.
    fn commit<'py>(
        &self,
        py: Python<'py>,
        verdicts: Vec<([u8; 6], u64)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let verdicts: Vec<_> = verdicts
            .iter()
            .map(|(id, clock)| (number(id), *clock))
            .collect();
        self.output(py, |journal| journal.commit(&verdicts))
    }

    /// Notes that messages `[start, stop)` of a batch were delivered.
    fn settle(&self, py: Python<'_>, batch: &Batch, start: i64, stop: i64) -> PyResult<()> {
        let rows = batch.rows(start, stop)?;
        let is_all = usize::try_from(stop) == Ok(batch.0.len());
        self.with(py, |journal| match &mut journal.sequencer {
            Some(sequencer) => sequencer.settle(rows.len(), rows.last(), is_all),
            None => Ok(()),
        })
    }

    /// Notes that all content processed so far had nothing to deliver.
    fn settle_all(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |journal| match &mut journal.sequencer {
            Some(sequencer) => sequencer.settle(0, None, true),
            None => Ok(()),
        })
    }

    /// Returns the offset read through, and states of producers, as of what was delivered.
    #[pyo3(signature = (prune_horizon_ns=0))]
    fn checkpoint<'py>(
        &self,
        py: Python<'py>,
        prune_horizon_ns: u64,
    ) -> PyResult<(i64, Bound<'py, PyList>)> {
        let (offset, states) = self.with(py, |journal| {
            let sequencer = journal.sequencer.as_mut();
            let sequencer = sequencer.ok_or(Misuse::Call("all messages are read"))?;
            Ok(sequencer.checkpoint(prune_horizon_ns))
        })?;
        let of = |(id, Bounds { min, max, begin }): (u64, Bounds)| {
            (PyBytes::new(py, &identity(id)), min, max, begin)
        };
        Ok((offset, PyList::new(py, states.into_iter().map(of))?))
    }

    /// Begins a replay, or continues it after what was delivered. Returns the range to read.
    fn begin_replay(&self, py: Python<'_>) -> PyResult<(i64, i64)> {
        self.with(py, journal::Journal::begin_replay)
    }

    fn feed_replay(&self, py: Python<'_>, chunk: PyBackedBytes) -> PyResult<()> {
        let chunk = Bytes::from_owner(chunk);
        self.with(py, |journal| journal.replayed()?.feed(chunk))
    }

    fn feed_replay_frames(&self, py: Python<'_>, frames: Frames) -> PyResult<()> {
        let frames = frames_of(frames);
        self.with(py, |journal| journal.replayed()?.feed_frames(frames))
    }

    /// Continues a replay after a gap.
    fn jump_replay(&self, py: Python<'_>, offset: i64) -> PyResult<()> {
        self.with(py, |journal| journal.replayed().map(|it| it.jump(offset)))?;
        Ok(())
    }

    /// Ends a replay, and returns the rest of its commit, which may be nothing.
    fn end_replay(&self, py: Python<'_>) -> PyResult<Batch> {
        self.with(py, journal::Journal::end_replay).map(Batch)
    }
}

type Frames = Vec<(PyBackedBytes, i64, i64)>;

fn frames_of(frames: Frames) -> Vec<Frame> {
    let of = |(payload, begin, end)| Frame {
        payload: Bytes::from_owner(payload),
        begin,
        end,
    };
    frames.into_iter().map(of).collect()
}

fn to_python(py: Python<'_>, output: Output) -> PyResult<Bound<'_, PyAny>> {
    let told = match output {
        Output::Rows(rows) => return Ok(Bound::new(py, Batch(rows))?.into_any()),
        Output::Idle => return Ok(py.None().into_bound(py)),
        Output::Progress => ("progress",).into_pyobject(py)?,
        Output::Odd(payloads) => {
            let payloads = payloads.iter().map(|payload| PyBytes::new(py, payload));
            ("odd", PyList::new(py, payloads.collect::<Vec<_>>())?).into_pyobject(py)?
        }
        Output::Refused(r) => ("refused", r.kind, r.begin, r.end, r.size).into_pyobject(py)?,
        Output::Replay(begin, end) => ("replay", begin, end).into_pyobject(py)?,
        Output::Changed(text) => ("changed", text).into_pyobject(py)?,
    };
    Ok(told.into_any())
}
