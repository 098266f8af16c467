//! Compiled core of `gazette_aio.message`: from chunks of a journal to committed messages, from these
//! to columns, and from documents to stamped frames. Only `python` knows Python.

#![forbid(unsafe_code)]

mod columns;
mod frames;
mod journal;
mod json;
mod python;
mod rows;
mod sequence;
mod stamp;
mod uuid;

/// A call that may not follow, or what it was given.
#[derive(Debug)]
enum Misuse {
    Call(&'static str),
    /// Content would be beyond the largest offset.
    Overflow,
}
