//! Rules for the text of the repository. Only tests: `cargo test -p steadfast-tidy`.
