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
