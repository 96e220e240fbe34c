//! A small engine for obligations about shared source: Rust code that is generic over its words
//! and bytes runs on solver terms here, along every feasible path.
//!
//! | module | job |
//! |---|---|
//! | `term` | terms, each there once, simplified as they are made |
//! | `solver` | one solver process, spoken to in SMT-LIB |
//! | `explore` | paths, assumptions, obligations, counterexamples |
//! | `run` | arguments and exit codes |
//! | `word` | numbers of 64 bits whose operators the code under test uses |

pub mod explore;
pub mod run;
pub mod solver;
pub mod term;
pub mod word;
