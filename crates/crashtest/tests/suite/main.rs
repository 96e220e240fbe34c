//! Recording and real file systems, in one program.

mod real;
mod recording;
mod trace_file;
