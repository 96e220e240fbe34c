# Recipes for development. `just` lists them; scripts/test.sh --help describes the stages that CI runs.

_default:
    @just --list --unsorted

# Format and lints of the product: under a minute when warm.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Everything that must hold before a change goes in: what CI runs.
test:
    scripts/test.sh

# The long tier: a million crash images, all mutants, longer runs. Some hours.
long:
    scripts/test.sh --long

# Measure beside the peers: `just bench fs`, `just bench nfs --quick`.
bench name *options:
    bench/run {{name}} {{options}}

# The book of docs/, in target/book. Needs `cargo install mdbook`.
book:
    mdbook build

# Licences, duplicates, sources and advisories of dependencies. Needs `cargo install cargo-deny`.
deny:
    cargo deny check

# The documentation of the crates.
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
