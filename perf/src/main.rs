//! Perf.

fn main() {}
