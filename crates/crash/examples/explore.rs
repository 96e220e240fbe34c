//! Runs the exploration: `explore SEED IMAGES [MUTATION]`.
use steadfast_crash::{Mutation, Options, explore};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, d: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(d);
    let mutation = args
        .get(3)
        .and_then(|m| Mutation::ALL.into_iter().find(|x| format!("{x:?}") == *m));
    let options = Options {
        seed: number(1, 1),
        images: number(2, 10_000),
        jobs: 2,
        mutation,
    };
    match explore(&options, &|_| {}) {
        Ok(report) => {
            for v in &report.violations {
                println!("{}{}\n", v.scenario, v.what);
            }
            println!(
                "images {} recoveries {} used {} pairs {}/{} sequences {} in {:?}",
                report.images,
                report.recoveries,
                report.used,
                report.pairs,
                report.pairs_all,
                report.sequences,
                report.elapsed
            );
        }
        Err(e) => println!("{e}"),
    }
}
