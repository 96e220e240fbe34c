//! What must hold of the repository as a text. Only tests: `cargo test -p steadfast-tidy`.
