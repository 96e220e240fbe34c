//! A word of a line after its commit word. A crash in between keeps the old word.
#![allow(unused_variables)]

use steadfast_pmfs::state::line::LineWriter;

fn change(mut line: LineWriter<'_>) {
    line.commit(0, 1);
    line.word(8, 2);
}

fn main() {}
